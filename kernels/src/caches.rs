//! Caches of this machine, as the system tells of them.

/// Bytes of the largest cache, 32 MiB where the system does not tell.
pub fn largest_cache() -> usize {
    static BYTES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *BYTES.get_or_init(|| cache_size(3).unwrap_or(32 << 20))
}

/// Bytes of the second-level cache; of a usual one where the system does not say.
pub fn second_cache() -> usize {
    static BYTES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *BYTES.get_or_init(|| cache_size(2).unwrap_or(512 << 10))
}

/// Ways of the first-level cache; of a usual one where the system does not say.
pub fn first_cache_ways() -> usize {
    static WAYS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let told = || std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index0/ways_of_associativity").ok()?.trim().parse().ok();
    *WAYS.get_or_init(|| told().filter(|ways| *ways > 0).unwrap_or(8))
}

fn cache_size(level: usize) -> Option<usize> {
    let told = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{level}/size")).ok()?;
    told.trim().strip_suffix('K')?.parse::<usize>().ok().map(|k| k << 10)
}

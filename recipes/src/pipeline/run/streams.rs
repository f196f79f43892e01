//! Schedules the launches of a step on several streams: independent launches run concurrently.
//!
//! Launches keep the order of the program where one uses memory that the other writes, arenas included: two tensors that occupy the same
//! bytes one after the other conflict. Streams follow from that order alone, so a schedule is deterministic.

use kernels::KernelError;
use kernels::device::Streams;
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of one piece of memory that a launch uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchRegion {
    pub memory: usize,
    pub bytes: Range<usize>,
    pub written: bool,
}

/// The stream of a launch and its dependencies on other streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamedLaunch {
    pub stream: usize,
    /// Launches of other streams that it waits for, without those that follow from these or from its own stream.
    pub waits: Vec<usize>,
    /// Whether a launch of another stream waits for it.
    pub waited: bool,
}

/// Whether two launches must keep their order: one writes memory that the other uses.
pub fn conflict(one: &[LaunchRegion], other: &[LaunchRegion]) -> bool {
    let meets = |a: &LaunchRegion, b: &LaunchRegion| {
        (a.written || b.written) && a.memory == b.memory && a.bytes.start < b.bytes.end && b.bytes.start < a.bytes.end
    };
    one.iter().any(|a| other.iter().any(|b| meets(a, b)))
}

/// Assigns launches, given in the order of the program, to at most `streams` streams.
///
/// A launch joins a stream whose last launch it depends on, so that it need not wait; else it gets a stream of its own; else the stream
/// that has been idle longest.
pub fn schedule(launches: &[Vec<LaunchRegion>], streams: usize) -> Vec<StreamedLaunch> {
    let mut placed: Vec<StreamedLaunch> = Vec::new();
    // Launches that are complete when one begins: by memory dependencies alone, and by memory and streams.
    let (mut needed, mut over): (Vec<BTreeSet<usize>>, Vec<BTreeSet<usize>>) = Default::default();
    let mut last: Vec<usize> = Vec::new();
    for (n, launch) in launches.iter().enumerate() {
        let direct: Vec<usize> = (0..n).filter(|before| conflict(&launches[*before], launch)).collect();
        let needs: BTreeSet<usize> = direct.iter().flat_map(|d| needed[*d].iter().chain([d])).copied().collect();
        let follows = (0..last.len()).filter(|s| needs.contains(&last[*s])).max_by_key(|s| last[*s]);
        let stream = match follows {
            Some(stream) => stream,
            None if last.len() < streams.max(1) => {
                last.push(n);
                last.len() - 1
            }
            None => (0..last.len()).min_by_key(|s| last[*s]).unwrap_or(0),
        };
        let mut known: BTreeSet<usize> = placed.iter().rposition(|p| p.stream == stream).into_iter().flat_map(|p| with(&over, p)).collect();
        let mut waits = Vec::new();
        for before in direct.into_iter().rev() {
            if !known.contains(&before) {
                known.extend(with(&over, before));
                waits.push(before);
                placed[before].waited = true;
            }
        }
        waits.sort_unstable();
        placed.push(StreamedLaunch { stream, waits, waited: false });
        last[stream] = n;
        needed.push(needs);
        over.push(known);
    }
    placed
}

/// A launch and those that are complete when it begins.
fn with(over: &[BTreeSet<usize>], launch: usize) -> impl Iterator<Item = usize> + '_ {
    over[launch].iter().copied().chain([launch])
}

/// The launches that are complete when each launch of a schedule begins: its predecessor on the stream, the launches that it waits for,
/// and those that were complete for these.
pub fn over(placed: &[StreamedLaunch]) -> Vec<BTreeSet<usize>> {
    let mut found: Vec<BTreeSet<usize>> = Vec::new();
    for (n, p) in placed.iter().enumerate() {
        let before = (0..n).rev().find(|b| placed[*b].stream == p.stream);
        found.push(before.into_iter().chain(p.waits.iter().copied()).flat_map(|b| with(&found, b).collect::<Vec<_>>()).collect());
    }
    found
}

/// The last launch that may run concurrently with these users of a memory region, given in order: the region is free only after it.
pub fn last_beside(over: &[BTreeSet<usize>], uses: &[usize]) -> usize {
    let last = uses.last().copied().unwrap_or(0);
    let free = |launch: &BTreeSet<usize>| uses.iter().all(|u| launch.contains(u));
    (last + 1..over.len()).rev().find(|n| !free(&over[*n])).unwrap_or(last)
}

/// How many streams a schedule uses.
pub fn used(placed: &[StreamedLaunch]) -> usize {
    placed.iter().map(|p| p.stream + 1).max().unwrap_or(1)
}

/// Issues launches on the streams of a device that records.
///
/// # Errors
/// Errors of `launch`, which gets a launch's number; a device that failed.
pub fn put(
    placed: &[StreamedLaunch],
    streams: &dyn Streams,
    mut launch: impl FnMut(usize) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    // Event numbers: each launch marks its own index, the beginning marks `placed.len()`, and the end of stream `n` marks `placed.len() +
    // n`.
    let beginning = placed.len();
    streams.enter(0);
    streams.mark(beginning)?;
    for stream in 1..used(placed) {
        streams.enter(stream);
        streams.wait(beginning)?;
    }
    for (n, StreamedLaunch { stream, waits, waited }) in placed.iter().enumerate() {
        streams.enter(*stream);
        waits.iter().try_for_each(|before| streams.wait(*before))?;
        launch(n)?;
        if *waited {
            streams.mark(n)?;
        }
    }
    for stream in 1..used(placed) {
        streams.enter(stream);
        streams.mark(beginning + stream)?;
        streams.enter(0);
        streams.wait(beginning + stream)?;
    }
    streams.enter(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(reads: &[usize], writes: &[usize]) -> Vec<LaunchRegion> {
        let region = |written: bool| move |memory: &usize| LaunchRegion { memory: *memory, bytes: 0..4, written };
        reads.iter().map(region(false)).chain(writes.iter().map(region(true))).collect()
    }

    /// Three projections of one input: two of the results are multiplied, and the product meets the third.
    #[test]
    fn projections_run_beside_one_another() {
        let launches = [uses(&[0], &[1]), uses(&[0], &[2]), uses(&[0], &[3]), uses(&[1, 2], &[4]), uses(&[3, 4], &[5])];
        let placed = schedule(&launches, 4);
        assert_eq!(placed.iter().map(|p| p.stream).collect::<Vec<_>>(), [0, 1, 2, 1, 1]);
        assert_eq!(placed.iter().map(|p| p.waits.clone()).collect::<Vec<_>>(), [vec![], vec![], vec![], vec![0], vec![2]]);
        assert_eq!(placed.iter().map(|p| p.waited).collect::<Vec<_>>(), [true, false, true, false, false]);
        assert_eq!(used(&placed), 3);
        assert!(schedule(&launches, 1).iter().all(|p| *p == StreamedLaunch::default()));
        // The first two results may be freed once their product is computed; on one stream each one as soon as it was read.
        let over = over(&placed);
        assert_eq!([[0, 3], [1, 3]].map(|uses| last_beside(&over, &uses)), [3, 3]);
        // The product does not wait for the third projection: the memory of the second result is in use at the same time.
        assert_eq!(last_beside(&over, &[2]), 3);
        assert_eq!(last_beside(&super::over(&schedule(&launches, 1)), &[2]), 2);
    }

    #[test]
    fn bytes_used_twice_are_a_dependency() {
        let at = |bytes: Range<usize>, written: bool| vec![LaunchRegion { memory: 0, bytes, written }];
        let apart = schedule(&[at(0..8, false), at(8..16, true)], 2);
        assert_eq!((used(&apart), apart[1].waits.len()), (2, 0));
        let after = schedule(&[at(0..8, false), at(7..16, true)], 2);
        assert_eq!(used(&after), 1);
        assert_eq!(used(&schedule(&[at(0..8, false), at(0..8, false)], 2)), 2);
    }

    /// A launch that uses memory which another writes keeps its order in the program.
    #[test]
    fn random_programs_keep_their_order() {
        let mut state = 1u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut wide = 0;
        for _ in 0..300 {
            let launches: Vec<Vec<LaunchRegion>> = (0..2 + below(20)).map(|_| uses(&[below(9), below(9)], &[below(9)])).collect();
            let placed = schedule(&launches, 1 + below(5));
            wide += usize::from(used(&placed) > 1);
            let over = over(&placed);
            for (n, p) in placed.iter().enumerate() {
                assert!(p.waits.iter().all(|w| *w < n && placed[*w].waited && placed[*w].stream != p.stream));
                for before in (0..n).filter(|before| conflict(&launches[*before], &launches[n])) {
                    assert!(over[n].contains(&before), "{n} does not wait for {before} in {launches:?}");
                }
            }
        }
        assert!(wide > 100);
    }
}

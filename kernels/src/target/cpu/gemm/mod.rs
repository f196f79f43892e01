//! The C library of matrix products that tile kernels call: packing, micro-kernels and the loops around them.

mod micro;

use crate::loopnest::GemmPlan;
use crate::processor::PanelBlock;
use micro::MicroKernelKind;
use std::sync::{Arc, Mutex};

/// A library of products: its block, whether factors are narrow, whether it computes in f64; and its C.
type Printed = ((PanelBlock, bool, bool), Arc<str>);

impl GemmPlan {
    /// C of packing, micro-kernels and products: a library of its own, so that every kernel that uses it compiles in no time.
    pub fn code(&self, double: bool) -> Arc<str> {
        // Printing it takes as long as printing a kernel.
        static KNOWN: Mutex<Vec<Printed>> = Mutex::new(Vec::new());
        let key = (self.block, self.narrow, double);
        let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, code)) = known.iter().find(|(k, _)| *k == key) {
            return code.clone();
        }
        let code: Arc<str> = self.printed(double).into();
        known.push((key, code.clone()));
        code
    }

    fn printed(&self, double: bool) -> String {
        let real = if double { "#define REAL_IS_DOUBLE\ntypedef double real;\n" } else { "typedef float real;\n" };
        let narrow = if self.narrow { "#define HAS_NARROW\n" } else { "" };
        let start = "#include <stdint.h>\n#define ALWAYS static inline __attribute__((always_inline))\n";
        let least = "ALWAYS int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }\n";
        let pairs = if self.narrow {
            self.block.code(MicroKernelKind::Pairs) + &self.block.code(MicroKernelKind::DirectPairs)
        } else {
            String::new()
        };
        let kernels: String =
            [MicroKernelKind::Packed, MicroKernelKind::Direct, MicroKernelKind::Open].map(|kind| self.block.code(kind)).concat();
        let body = include_str!("gemm.c")
            .replace("WALKS\n", include_str!("walk.c"))
            .replace("PACKING\n", include_str!("pack.c"))
            .replace("NARROW_FACTORS\n", if self.narrow { include_str!("bf16.c") } else { "" })
            .replace("MICRO_KERNELS_OF_PAIRS\n", &pairs)
            .replace("MICRO_KERNELS\n", &kernels);
        format!("{start}{real}{narrow}{least}{}{body}", self.block.defines())
    }

    /// C that a kernel needs to call the library that its host has loaded.
    pub fn calls(&self, double: bool) -> String {
        let width = self.block.width(if double { 8 } else { 4 });
        format!(
            "\n/* Matrix products, by the library that the host has loaded. */
ALWAYS int64_t in_panels(int64_t n) {{ return (n + {last}) / {width} * {width}; }}
#define pack_chunks ((void (*)(const void *, int64_t, int64_t, int64_t, int64_t, int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, real *, void (*)(void *, const void *, int64_t)))host->pack)
#define pack_lines ((void (*)(const void *, int64_t, int64_t, int64_t, int64_t, int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, real *, void (*)(void *, const void *, int64_t)))host->pack_lines)
#define gemm ((void (*)(int64_t, int64_t, int64_t, int64_t, const void *, int64_t, int64_t, real, const void *, int64_t, int64_t, int, real *, int64_t, int64_t, int, real *, real *, const real *, int64_t, int64_t, const real *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, const void *, const void *))host->gemm)
",
            last = width - 1
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::stream::{Stream, fence, stream};
    use crate::target::cpu::Toolchain;
    use crate::target::cpu::compile::Opaque;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// The assembly of a text under further flags; `None` if the compiler does not know them, or there is none.
    fn assembly(text: &str, flags: &[&str]) -> Option<Result<String, String>> {
        let compiler = std::env::var("CC").ok().filter(|c| !c.is_empty()).unwrap_or_else(|| "cc".into());
        let compiled = |text: &str| {
            let mut command = Command::new(&compiler);
            command.args(flags).args(["-O2", "-std=gnu11", "-fopenmp-simd", "-S", "-x", "c", "-o", "-", "-"]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
            child.stdin.take()?.write_all(text.as_bytes()).ok()?;
            child.wait_with_output().ok()
        };
        compiled("int nothing;\n").filter(|o| o.status.success())?;
        let output = compiled(text)?;
        let found = if output.status.success() { Ok(output.stdout) } else { Err(output.stderr) };
        Some(found.map(|o| String::from_utf8_lossy(&o).into_owned()).map_err(|e| String::from_utf8_lossy(&e).into_owned()))
    }

    type Columns = unsafe extern "C" fn(*const u16, i64, i64, i64, i64, i32, i64, i64, i64, i64, i64, i64, *mut f32, Option<Stream>);
    type Rows = unsafe extern "C" fn(*const u16, i64, i64, i64, i64, i32, i64, i64, i64, i64, i64, i64, i64, *mut f32, Option<Stream>);

    /// Depths of less than a slice, of several, and of chunks; lines that are neighbours, or whose steps are; whole panels and not.
    #[test]
    fn what_is_streamed_is_packed_the_same() {
        // The test is of packing: micro-kernels for many rows would be compiled for nothing.
        let (block, dir) = (PanelBlock { height: 6, ..PanelBlock::native() }, tempfile::tempdir().expect("a folder"));
        let toolchain = Toolchain { cache: dir.path().into(), ..Toolchain::system().expect("a compiler") };
        let text = GemmPlan { block, depth: 384, narrow: true, pairs: true, across: false, direct: false, layers: false }.code(false);
        let [columns, rows, _] = toolchain.functions(&text).expect("a library");
        // SAFETY: as `GemmPlan::calls` declares them, for elements of f32.
        let (columns, rows) =
            unsafe { (std::mem::transmute::<Option<Opaque>, Columns>(columns), std::mem::transmute::<Option<Opaque>, Rows>(rows)) };
        let from: Vec<u16> = (0..1 << 20).map(|n| ((n * 2654435761u64) >> 13) as u16 & 0x7f7f).collect();
        let (most, whole) = (700, 512);
        let widened = |lines: usize, depth: i64| lines * (depth as usize + 2) + 64;
        for (depth, lines, types) in [(1500, 256, 7), (701, 256, 3), (17, 40, 7), (1400, 100, 3), (333, 31, 7)] {
            for (line, step) in [(1, lines + 5), (depth + 3, 1)] {
                let both = |pack: &dyn Fn(*mut f32, Option<Stream>)| {
                    [None, Some(stream())].map(|by| {
                        let mut to = vec![0f32; widened(whole, depth)];
                        pack(to.as_mut_ptr(), by);
                        fence();
                        to.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
                    })
                };
                let (at, whole) = (from.as_ptr(), whole as i64);
                // SAFETY: all within `from` and `to`.
                let [plain, streamed] =
                    both(&|to, by| unsafe { columns(at, step, line, 1, 0, types, lines, depth, most, 1, whole, 0, to, by) });
                assert!(plain == streamed && plain.iter().any(|x| *x != 0), "columns: {depth} {lines} {types} {line}");
                let end = (lines as usize).div_ceil(block.height) as i64;
                // Panels from the second on start anywhere in a line of memory.
                let [plain, streamed] =
                    both(&|to, by| unsafe { rows(at, line, step, 1, 0, types, lines, depth, most, whole, 3, 1, end, to, by) });
                assert!(plain == streamed && plain.iter().any(|x| *x != 0), "rows: {depth} {lines} {types} {line}");
            }
        }
    }

    /// For processors that this one may not be: the library compiles for each, and multiplies pairs by their instruction.
    #[test]
    fn the_library_compiles_for_other_processors() {
        // Two rows are as good as all to be compiled.
        let [wide, half, neon] = [64, 32, 16].map(|vector| PanelBlock { vector, height: 2, vectors: 2 });
        let processors: [(&[&str], PanelBlock, Option<&str>); 5] = [
            (&["-march=x86-64-v4", "-mavx512bf16"], wide, Some("vdpbf16ps")),
            (&["-march=x86-64-v4"], wide, None),
            (&["-march=x86-64-v3"], half, None),
            (&["-march=armv8.6-a+bf16"], neon, Some("bfdot")),
            (&["-march=armv8-a"], neon, None),
        ];
        for (flags, block, instruction) in processors {
            let text = GemmPlan { block, depth: 384, narrow: true, pairs: true, across: false, direct: false, layers: false }.code(false);
            let Some(found) = assembly(&text, flags) else { continue };
            let assembly = found.unwrap_or_else(|why| panic!("{flags:?}: {why}"));
            match instruction {
                Some(name) => assert!(assembly.contains(name), "{flags:?}: no {name}"),
                None => assert!(!assembly.contains("vdpbf16ps") && !assembly.contains("bfdot"), "{flags:?}"),
            }
        }
    }
}

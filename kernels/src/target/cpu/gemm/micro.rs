//! Register-blocked micro-kernels: a panel of rows times a panel of columns, all results in vector registers.

use crate::caches::first_cache_ways;
use crate::processor::{PanelBlock, is_intel, near};
use std::fmt::Write;

impl PanelBlock {
    /// What `gemm.c` must know of the block.
    pub fn defines(self) -> String {
        let PanelBlock { vector, height, vectors } = self;
        let (near, reads) = (near(), i32::from(self.reads_rows()));
        // Elsewhere rows that lie so are packed unless few columns pass, and nothing has been measured.
        let ways = if is_intel() { first_cache_ways() } else { height };
        format!(
            "#define VEC_BYTES {vector}\n#define HEIGHT {height}\n#define NV {vectors}\n#define READS_ROWS {reads}\n#define WAYS {ways}\n#ifndef NEAR\n#define NEAR (int64_t){near}\n#endif\n"
        )
    }

    /// C of the micro-kernels for every height, on panels or rows of one kind.
    ///
    /// `NAME[h](depth, a, a_row, a_step, b, b_step, scale, c, row, how, ahead)` computes h rows. A panel holds h values of `a` for each
    /// step of the depth; rows that are read where they lie are `a_row` apart and their steps `a_step`. `b` holds one row of columns
    /// for each step, `b_step` apart, which is the width of a panel but for `MicroKernelKind::Open`.
    /// In between, the lines that `ahead` walks over are prefetched (`walk.c`).
    pub fn code(self, kind: MicroKernelKind) -> String {
        let name = kind.name();
        let mut text = String::new();
        for rows in 1..=self.height {
            self.kernel(&mut text, rows, kind);
        }
        let all: Vec<String> = (1..=self.height).map(|h| format!("{name}{h}")).collect();
        let _ = writeln!(text, "\nstatic Micro *const {name}[] = {{0, {}}};", all.join(", "));
        text
    }

    fn kernel(self, text: &mut String, rows: usize, kind: MicroKernelKind) {
        let (vectors, name) = (self.vectors, kind.name());
        let _ = writeln!(text, "\nstatic __attribute__((noinline)) void {name}{rows}({PARAMETERS})\n{{");
        for i in 0..rows {
            let results: Vec<String> = (0..vectors).map(|v| format!("c{i}_{v} = {{0}}")).collect();
            let _ = writeln!(text, "    reg {};", results.join(", "));
        }
        // Processors that decode little gain nothing from it, and lose some of shallow products.
        if self.reads_rows() {
            let _ = writeln!(text, "    if (!(how & STREAMED)) {{");
            for i in 0..rows {
                let _ = writeln!(text, "        __builtin_prefetch(c + {i} * row, 1);");
                let _ = writeln!(text, "        __builtin_prefetch(c + {i} * row + WIDTH - 1, 1);");
            }
            let _ = writeln!(text, "    }}");
        }
        let thirds: Vec<usize> = (0..rows).step_by(3).collect();
        match kind.lies() {
            // An address is a register and one, two or no strides: a register for every third row.
            true => thirds.iter().for_each(|first| {
                let _ = writeln!(text, "    const real *a{first} = a + {first} * a_row;");
            }),
            false => {
                let _ = writeln!(text, "    (void)a_row, (void)a_step;");
            }
        }
        let lane = if kind.is_paired() { "words" } else { "reg" };
        let names: Vec<String> = (0..vectors).map(|v| format!("b{v}")).collect();
        let _ = writeln!(text, "    {lane} x, {};", names.join(", "));
        let next = |steps: usize| match kind.lies() {
            true => thirds.iter().map(|first| format!("a{first} += {steps} * a_step")).collect::<Vec<_>>().join(", "),
            false => format!("a += {}", steps * rows),
        };
        if !kind.columns_lie() {
            let _ = writeln!(text, "    (void)b_step;");
        }
        let across = kind.across();
        let neighbours = if kind.lies() { " && a_step == 1" } else { "" };
        let _ = writeln!(text, "#if EXACT\n    const char *at = ahead->at, *end = ahead->end;");
        let forth = next(STEPS);
        let _ = writeln!(text, "    for (; depth >= {STEPS}{neighbours}; depth -= {STEPS}, {forth}, b += {STEPS} * {across}) {{");
        let (fetch, stride) = if kind.lies() { ("FETCH(at); FETCH(at + LINE);", "LYING") } else { ("FETCH(at);", "PACKED") };
        let _ = writeln!(text, "        {fetch} if ((at += {stride}) == end) at += ahead->skip, end += ahead->apart;");
        (0..STEPS).for_each(|step| self.step(text, rows, kind, step));
        let _ = writeln!(text, "    }}\n    ahead->at = at, ahead->end = end;\n#else\n    (void)ahead;\n#endif");
        let _ = writeln!(text, "    for (; depth > 0; --depth, {}, b += {across}) {{", next(1));
        self.step(text, rows, kind, 0);
        let _ = writeln!(text, "    }}");
        // Addresses of results and the factor are found after the loop: before it they would take registers from it.
        let _ = writeln!(text, "    __asm__(\"\" : \"+r\"(c), \"+r\"(row));\n    const real by = *scale;");
        let results = || (0..rows).flat_map(|i| (0..vectors).map(move |v| (i, v)));
        for (i, v) in results() {
            let _ = writeln!(text, "    c{i}_{v} *= by;");
        }
        let _ = writeln!(text, "    if (how & ADDED) {{");
        for (i, v) in results() {
            let _ = writeln!(text, "        c{i}_{v} += *(const vec *)(c + {i} * row + {v} * VL);");
        }
        let _ = writeln!(text, "    }}");
        let _ = writeln!(text, "    if (how & STREAMED) {{");
        for (i, v) in results() {
            let _ = writeln!(text, "        STREAM(c + {i} * row + {v} * VL, c{i}_{v});");
        }
        let _ = writeln!(text, "        return;\n    }}");
        for (i, v) in results() {
            let _ = writeln!(text, "    *(vec *)(c + {i} * row + {v} * VL) = c{i}_{v};");
        }
        let _ = writeln!(text, "}}");
    }

    /// Whether multiply-adds of this row read its values themselves: two reads in place of one, but an instruction less. Where
    /// processors decode little, nine rows of 14 in panels do, which the two ports for reads bear; of others those at an address that
    /// is one register. Zen 5 starts two multiply-adds and two reads in a cycle and decodes eight: reads are what it lacks. Only AVX-512
    /// has multiply-adds that spread the value they read.
    fn reads(self, kind: MicroKernelKind, row: usize) -> bool {
        self.vector == 64 && !self.reads_rows() && if kind.lies() { row.is_multiple_of(3) } else { row * 9 % 14 < 9 }
    }

    /// One step of the depth, at a distance in steps from the current addresses.
    fn step(self, text: &mut String, rows: usize, kind: MicroKernelKind, step: usize) {
        let vectors = self.vectors;
        let across = kind.across();
        let (load, fetch) = if kind.is_paired() { ("LOAD_PAIRS", "__builtin_prefetch") } else { ("LOAD", "FETCH") };
        for v in 0..vectors {
            let _ = writeln!(text, "        {load}(b{v}, b + {step} * {across} + {v} * VL);");
        }
        // Panels come from a farther cache, those of rows from the third or from memory: steps ahead that are soon enough. Where vectors
        // are shorter than lines, each line is asked for once.
        if !kind.lies() && (self.vector >= LINE || step == 0 || step * rows * 4 / LINE != (step - 1) * rows * 4 / LINE) {
            let fetch = if kind.is_paired() { fetch } else { "FETCH_ROWS" };
            let _ = writeln!(text, "        {fetch}(a + {});", (ROWS_AHEAD + step) * rows);
        }
        for v in (0..vectors).step_by((LINE / self.vector).max(1)) {
            let _ = writeln!(text, "        {fetch}(b + {} * {across} + {v} * VL);", COLUMNS_AHEAD + step);
        }
        for i in 0..rows {
            let at = match (kind.lies(), i % 3) {
                (false, _) => format!("a + {}", step * rows + i),
                (true, 0) => format!("a{i} + {step}"),
                (true, 1) => format!("a{} + a_row + {step}", i - 1),
                (true, _) => format!("a{} + 2 * a_row + {step}", i - 2),
            };
            let all = |each: &dyn Fn(usize) -> String| (0..vectors).map(each).collect::<Vec<_>>().join(" ");
            let sums = match kind {
                MicroKernelKind::Pairs | MicroKernelKind::DirectPairs => {
                    let word = if kind.lies() { "free_word" } else { "word" };
                    format!("x = *(const {word} *)({at}) - (words){{0}}; IN_REGISTER(x); ")
                        + &all(&|v| format!("c{i}_{v} = dot(c{i}_{v}, x, b{v});"))
                }
                _ if self.reads(kind, i) => all(&|v| format!("ADD_READ(c{i}_{v}, {at}, b{v});")),
                _ => format!("SPREAD(x, {at}); ") + &all(&|v| format!("ADD(c{i}_{v}, x, b{v});")),
            };
            let _ = writeln!(text, "        {sums}");
        }
    }
}

/// Where a micro-kernel finds its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroKernelKind {
    /// In a packed panel.
    Packed,
    /// Where they lie.
    Direct,
    /// Where they lie, and so are columns.
    Open,
    /// In a packed panel of pairs of bf16.
    Pairs,
    /// Pairs of bf16 where they lie.
    DirectPairs,
}

impl MicroKernelKind {
    fn name(self) -> &'static str {
        match self {
            MicroKernelKind::Packed => "micro",
            MicroKernelKind::Direct => "direct",
            MicroKernelKind::Open => "open",
            MicroKernelKind::Pairs => "micro_pairs",
            MicroKernelKind::DirectPairs => "direct_pairs",
        }
    }

    /// Whether rows are read where they lie.
    fn lies(self) -> bool {
        matches!(self, MicroKernelKind::Direct | MicroKernelKind::Open | MicroKernelKind::DirectPairs)
    }

    /// Whether columns are read where they lie, too.
    fn columns_lie(self) -> bool {
        self == MicroKernelKind::Open
    }

    /// C text of the elements between steps of the columns.
    fn across(self) -> &'static str {
        if self.columns_lie() { "b_step" } else { "WIDTH" }
    }

    fn is_paired(self) -> bool {
        matches!(self, MicroKernelKind::Pairs | MicroKernelKind::DirectPairs)
    }
}

/// Bytes of a line of the caches.
const LINE: usize = 64;
/// Steps of the depth in one round of the loop, where instructions are chosen one by one.
const STEPS: usize = 4;
/// Steps of the depth for which packed rows, and columns, are asked for in advance.
const ROWS_AHEAD: usize = 32;
const COLUMNS_AHEAD: usize = 8;
const PARAMETERS: &str = "int64_t depth, const real *restrict a, int64_t a_row, int64_t a_step, const real *restrict b, int64_t b_step, const real *scale, real *restrict c, int64_t row, int how, Walk *ahead";

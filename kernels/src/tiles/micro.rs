//! Register-blocked micro-kernels: a panel of rows times a panel of columns, all results in vector registers.

use std::fmt::Write;

/// The register block that suits a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Bytes of a vector register.
    pub vector: usize,
    /// Most rows of a panel.
    pub height: usize,
    /// Vectors across a panel of columns.
    pub vectors: usize,
}

impl Block {
    /// The block for the processor that runs this program: as many results as leave registers for one row of columns and one
    /// broadcast value.
    pub fn native() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                return Block { vector: 64, height: 14, vectors: 2 };
            }
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                return Block { vector: 32, height: 6, vectors: 2 };
            }
        }
        #[cfg(target_arch = "aarch64")]
        return Block { vector: 16, height: 8, vectors: 3 };
        #[allow(unreachable_code)]
        Block { vector: 16, height: 6, vectors: 2 }
    }

    /// Columns of a panel, for elements of `bytes` bytes.
    pub fn width(self, bytes: usize) -> usize {
        self.vectors * self.vector / bytes
    }

    /// What `product.c` must know of the block.
    pub fn defines(self) -> String {
        let Block { vector, height, vectors } = self;
        format!("#define VEC_BYTES {vector}\n#define HEIGHT {height}\n#define NV {vectors}\n")
    }

    /// C of the micro-kernels for every height.
    ///
    /// `micro[h](depth, a, b, c, row, add)` computes h rows: `a` holds h values and `b` one row of columns for each step of the
    /// depth. `direct[h](depth, a, a_row, a_step, b, c, row, add, scale)` reads its rows where they lie. Steps are not unrolled:
    /// with several of them in sight gcc loads broadcast values as vectors and spreads them by permutations, which share a port
    /// with the multiply-adds.
    pub fn code(self) -> String {
        let mut text = String::new();
        for rows in 1..=self.height {
            self.kernel(&mut text, rows, false);
            self.kernel(&mut text, rows, true);
        }
        let all = |name: &str| (1..=self.height).map(|h| format!("{name}{h}")).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "\ntypedef void Micro({PACKED});\nstatic Micro *const micro[] = {{0, {}}};", all("micro"));
        let _ = writeln!(text, "typedef void Direct({DIRECT});\nstatic Direct *const direct[] = {{0, {}}};", all("direct"));
        text
    }

    fn kernel(self, text: &mut String, rows: usize, direct: bool) {
        let vectors = self.vectors;
        let (name, parameters) = if direct { ("direct", DIRECT) } else { ("micro", PACKED) };
        let _ = writeln!(text, "\nstatic __attribute__((noinline)) void {name}{rows}({parameters})\n{{");
        for i in 0..rows {
            let results: Vec<String> = (0..vectors).map(|v| format!("c{i}_{v} = {{0}}")).collect();
            let _ = writeln!(text, "    reg {};", results.join(", "));
        }
        for i in 0..rows {
            let _ = writeln!(text, "    __builtin_prefetch(c + {i} * row, 1);");
            let _ = writeln!(text, "    __builtin_prefetch(c + {i} * row + WIDTH - 1, 1);");
        }
        // An address is a register and one, two or no strides: a register for every third row.
        let thirds: Vec<usize> = (0..rows).step_by(3).collect();
        let mut next = format!("a += {rows}");
        if direct {
            for first in &thirds {
                let _ = writeln!(text, "    const real *a{first} = a + {first} * a_row;");
            }
            next = thirds.iter().map(|first| format!("a{first} += a_step")).collect::<Vec<_>>().join(", ");
        }
        let _ = writeln!(text, "    for (; depth > 0; --depth, {next}, b += WIDTH) {{");
        for v in 0..vectors {
            let _ = writeln!(text, "        const reg b{v} = *(const vec *)(b + {v} * VL);");
        }
        // Panels come from a farther cache: eight steps ahead is soon enough.
        if !direct {
            let _ = writeln!(text, "        __builtin_prefetch(a + 8 * {rows});");
        }
        for v in 0..vectors {
            let _ = writeln!(text, "        __builtin_prefetch(b + 8 * WIDTH + {v} * VL);");
        }
        let _ = writeln!(text, "        reg x;");
        for i in 0..rows {
            let sums: Vec<String> = (0..vectors).map(|v| format!("c{i}_{v} += x * b{v};")).collect();
            let from = match (direct, i % 3) {
                (false, _) => format!("a[{i}]"),
                (true, 0) => format!("*a{i}"),
                (true, 1) => format!("a{}[a_row]", i - 1),
                (true, _) => format!("a{}[2 * a_row]", i - 2),
            };
            let _ = writeln!(text, "        x = {from} - (reg){{0}}; IN_REGISTER(x); {}", sums.join(" "));
        }
        let _ = writeln!(text, "    }}");
        // Addresses of results and the factor are found after the loop: before it they would take registers from it.
        let _ = writeln!(text, "    __asm__(\"\" : \"+r\"(c), \"+r\"(row));");
        let results = || (0..rows).flat_map(|i| (0..vectors).map(move |v| (i, v)));
        if direct {
            let _ = writeln!(text, "    const real by = *scale;");
            for (i, v) in results() {
                let _ = writeln!(text, "    c{i}_{v} *= by;");
            }
        }
        let _ = writeln!(text, "    if (add) {{");
        for (i, v) in results() {
            let _ = writeln!(text, "        c{i}_{v} += *(const vec *)(c + {i} * row + {v} * VL);");
        }
        let _ = writeln!(text, "    }}");
        for (i, v) in results() {
            let _ = writeln!(text, "    *(vec *)(c + {i} * row + {v} * VL) = c{i}_{v};");
        }
        let _ = writeln!(text, "}}");
    }
}

/// Parameters of a micro-kernel on packed rows, and of one on rows as they lie.
const PACKED: &str = "int64_t depth, const real *restrict a, const real *restrict b, real *restrict c, int64_t row, int add";
const DIRECT: &str = "int64_t depth, const real *restrict a, int64_t a_row, int64_t a_step, const real *restrict b, real *restrict c, int64_t row, int add, const real *scale";

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

    /// C of the micro-kernels for every height, of panels of `real` or of pairs of bf16.
    ///
    /// `micro[h](depth, a, b, scale, c, row, add)` computes h rows: `a` holds h values and `b` one row of columns for each step of
    /// the depth; `micro_pairs` takes two steps of it at a time. Steps are not unrolled: with several of them in sight gcc loads
    /// broadcast values as vectors and spreads them by permutations, which share a port with the multiply-adds.
    pub fn code(self, pairs: bool) -> String {
        let Block { height, vectors, .. } = self;
        let name = if pairs { "micro_pairs" } else { "micro" };
        let mut text = String::new();
        for rows in 1..=height {
            let _ = writeln!(
                text,
                "\nstatic __attribute__((noinline)) void {name}{rows}(int64_t depth, const real *restrict a, const real *restrict b, real scale, real *restrict c, int64_t row, int add)\n{{"
            );
            for i in 0..rows {
                let results: Vec<String> = (0..vectors).map(|v| format!("c{i}_{v} = {{0}}")).collect();
                let _ = writeln!(text, "    reg {};", results.join(", "));
            }
            for i in 0..rows {
                let _ = writeln!(text, "    __builtin_prefetch(c + {i} * row, 1);");
                let _ = writeln!(text, "    __builtin_prefetch(c + {i} * row + WIDTH - 1, 1);");
            }
            let _ = writeln!(text, "    for (; depth > 0; --depth, a += {rows}, b += WIDTH) {{");
            for v in 0..vectors {
                let _ = match pairs {
                    false => writeln!(text, "        const reg b{v} = *(const vec *)(b + {v} * VL);"),
                    true => writeln!(text, "        const words b{v} = (words)*(const vec *)(b + {v} * VL);"),
                };
            }
            // Panels come from a farther cache: eight steps ahead is soon enough.
            let _ = writeln!(text, "        __builtin_prefetch(a + 8 * {rows});");
            for v in 0..vectors {
                let _ = writeln!(text, "        __builtin_prefetch(b + 8 * WIDTH + {v} * VL);");
            }
            let _ = writeln!(text, "        {} x;", if pairs { "words" } else { "reg" });
            for i in 0..rows {
                let sum = |v| if pairs { format!("c{i}_{v} = dot(c{i}_{v}, x, b{v});") } else { format!("c{i}_{v} += x * b{v};") };
                let sums: Vec<String> = (0..vectors).map(sum).collect();
                let value = if pairs { format!("((const word *)a)[{i}] - (words){{0}}") } else { format!("a[{i}] - (reg){{0}}") };
                let _ = writeln!(text, "        x = {value}; IN_REGISTER(x); {}", sums.join(" "));
            }
            let _ = writeln!(text, "    }}");
            for (i, v) in (0..rows).flat_map(|i| (0..vectors).map(move |v| (i, v))) {
                let _ = writeln!(text, "    c{i}_{v} *= scale;");
            }
            let _ = writeln!(text, "    if (add) {{");
            for (i, v) in (0..rows).flat_map(|i| (0..vectors).map(move |v| (i, v))) {
                let _ = writeln!(text, "        c{i}_{v} += *(const vec *)(c + {i} * row + {v} * VL);");
            }
            let _ = writeln!(text, "    }}");
            for (i, v) in (0..rows).flat_map(|i| (0..vectors).map(move |v| (i, v))) {
                let _ = writeln!(text, "    *(vec *)(c + {i} * row + {v} * VL) = c{i}_{v};");
            }
            let _ = writeln!(text, "}}");
        }
        let all: Vec<String> = (1..=height).map(|h| format!("{name}{h}")).collect();
        let _ = writeln!(text, "\nstatic Micro *const {name}[] = {{0, {}}};", all.join(", "));
        text
    }
}

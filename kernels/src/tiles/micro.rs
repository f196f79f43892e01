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
    /// depth. Steps are not unrolled: with several of them in sight gcc loads broadcast values as vectors and spreads them by
    /// permutations, which share a port with the multiply-adds.
    pub fn code(self) -> String {
        let Block { height, vectors, .. } = self;
        let mut text = String::new();
        for rows in 1..=height {
            let _ = writeln!(
                text,
                "\nstatic __attribute__((noinline)) void micro{rows}(int64_t depth, const real *restrict a, const real *restrict b, real *restrict c, int64_t row, int add)\n{{"
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
                let _ = writeln!(text, "        const reg b{v} = *(const vec *)(b + {v} * VL);");
            }
            // Panels come from a farther cache: eight steps ahead is soon enough.
            let _ = writeln!(text, "        __builtin_prefetch(a + 8 * {rows});");
            for v in 0..vectors {
                let _ = writeln!(text, "        __builtin_prefetch(b + 8 * WIDTH + {v} * VL);");
            }
            let _ = writeln!(text, "        reg x;");
            for i in 0..rows {
                let sums: Vec<String> = (0..vectors).map(|v| format!("c{i}_{v} += x * b{v};")).collect();
                let _ = writeln!(text, "        x = a[{i}] - (reg){{0}}; IN_REGISTER(x); {}", sums.join(" "));
            }
            let _ = writeln!(text, "    }}");
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
        let all: Vec<String> = (1..=height).map(|h| format!("micro{h}")).collect();
        let _ = writeln!(text, "\ntypedef void Micro(int64_t, const real *, const real *, real *, int64_t, int);");
        let _ = writeln!(text, "static Micro *const micro[] = {{0, {}}};", all.join(", "));
        text
    }
}

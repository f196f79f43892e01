//! The loops around micro-kernels of a direct product.

/// A loop around micro-kernels: iterations, its step, and how far one iteration moves in each tensor and along each dim that windows leave.
#[derive(Clone)]
pub struct BlockLoop {
    pub count: String,
    /// The most iterations that one micro-kernel does.
    pub step: i64,
    /// Whether micro-kernels share the iterations equally, as `register_block::equal_blocks` has it, or else the last one does the rest.
    pub is_equal: bool,
    pub strides: Vec<i64>,
    pub moves: Vec<i64>,
}

impl BlockLoop {
    /// C that begins loop number `n`, over `x<n>`, and C of `h<n>`, the iterations of a block, unless that is one.
    pub fn begin(&self, n: usize) -> [String; 2] {
        let BlockLoop { count, step, .. } = self;
        match (*step > 1, self.is_equal) {
            (false, _) => [format!("for (int64_t x{n} = 0; x{n} < {count}; ++x{n}) {{"), String::new()],
            (true, false) => [
                format!("for (int64_t x{n} = 0; x{n} < {count}; x{n} += {step}) {{"),
                format!("const int64_t h{n} = min_of({step}, {count} - x{n});"),
            ],
            // The first blocks have one iteration more where their number does not divide that of all.
            (true, true) => {
                let blocks = format!("max_of(({count} + {}) / {step}, 1)", step - 1);
                let some = format!("const int64_t some{n} = {count} / {blocks}, more{n} = {count} % {blocks} * (some{n} + 1);");
                [
                    format!("{some} for (int64_t x{n} = 0, h{n}; x{n} < {count}; x{n} += h{n}) {{"),
                    format!("h{n} = some{n} + (x{n} < more{n});"),
                ]
            }
        }
    }
}

//! Operators that other languages have, and how a recipe says the same.

/// What to write in the place of a name that people know from elsewhere.
pub fn instead(name: &str) -> Option<&'static str> {
    Some(match name {
        "matmul" | "mm" | "bmm" | "dot" | "einsum" | "linear" => "write the product with its indices: `w[o,i] * x[b,i]` sums over `i`",
        "transpose" | "permute" | "swapaxes" | "t" => "write the indices in the order you want: no tensor has one in memory",
        "reshape" | "view" | "flatten" => "give the tensor the dims that you need: `[b, h, p]` in the place of one that holds `h` and `p`",
        "cat" => "write `concat(a, b, along: c)`",
        "split" | "chunk" => "write `slice(x, along: c, from: 2)` for each part",
        "stack" => "give the parts one dim in common, and pick by `where(g == 0, …, …)`",
        "swish" => "it is called `silu`",
        "var" | "variance" => "write `mean(pow(x - mean(x, over: i), 2), over: i)`",
        "std" => "write `sqrt(mean(pow(x - mean(x, over: i), 2), over: i))`",
        "logsoftmax" => "it is called `log_softmax`",
        "softplus" => "write `max(x, 0) + log(1 + exp(-abs(x)))`, which is 0 where x is less than the logarithm of what the type rounds",
        "clamp" | "clip" => "write `min(max(x, 0), 1)`",
        "square" => "write `pow(x, 2)`",
        "reciprocal" => "write `1 / x`",
        "neg" | "negative" => "write `-x`",
        "sign" => "write `(x > 0) - (x < 0)`",
        "round" => "write `floor(x + 0.5)`",
        "ceil" => "write `-floor(-x)`",
        "elu" => "write `where(x > 0, x, exp(x) - 1)`",
        "leaky_relu" | "leakyrelu" => "write `max(x, 0.01 * x)`",
        "tril" | "triu" | "mask" => "compare indices: `where(k > j, 0, s[j,k])`",
        "arange" | "iota" => "write the index itself: `1.0 * j` counts along `j`",
        "detach" => "write `stop_gradient(x)`",
        "nll_loss" | "crossentropy" => "write `cross_entropy(score, label, over: c)` of the scores themselves",
        "onehot" | "one_hot" => "compare with the index: `label[n] == c` is 1 at the label",
        "embedding" | "gather" | "take" => "read the rows themselves: `table[ids[b],i]`",
        "topk" | "cumsum" => "there is no order of elements",
        "conv1d" | "conv2d" | "conv3d" | "convolution" => "write `conv(x, k, stride: 1, pad: 1)`",
        "max_pool" | "avg_pool" | "max_pool2d" | "avg_pool2d" => {
            "write `maxpool(x, over: [r, s], stride: 2)`, with dims `r` and `s` of the window"
        }
        "global_average_pool" | "globalavgpool" => "write `globalpool(x)`",
        _ => return None,
    })
}

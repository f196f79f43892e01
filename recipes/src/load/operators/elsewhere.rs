//! Operators that other languages have, and how a recipe says the same.

/// What to write in the place of a name that people know from elsewhere.
pub fn instead(name: &str) -> Option<&'static str> {
    Some(match name {
        "matmul" | "mm" | "bmm" | "dot" | "einsum" | "linear" => "write the product with its indices: `w[o,i] * x[b,i]` sums over `i`",
        "transpose" | "permute" | "swapaxes" | "t" => "write the indices in the order you want: no tensor has one in memory",
        "reshape" | "view" | "flatten" => "give the tensor the dims that you need: `[b, h, p]` in the place of one that holds `h` and `p`",
        "concat" | "cat" | "stack" | "split" | "chunk" => "give the parts names of their own, or one more dim",
        "swish" => "it is called `silu`",
        "rmsnorm" => "write `x[b,i] * rsqrt(mean(pow(x[b,i], 2), over: i) + 1e-6) * g[i]`",
        "var" | "variance" | "std" => "write `mean(pow(x - m, 2), over: i)`, of the mean `m` in a step before",
        "logsumexp" => "write `m + log(sum(exp(x - m), over: i))`, of the largest `m = max(x, over: i)` in a step before",
        "logsoftmax" | "log_softmax" => {
            "write `x - m - log(sum(exp(x - m), over: i))`, of the largest `m = max(x, over: i)` in a step before"
        }
        "cross_entropy" | "nll_loss" => "see recipes/classifier.yaml, which has one",
        "onehot" | "one_hot" => "compare with the index: `label[n] == c` is 1 at the label",
        "embedding" | "gather" | "take" | "argmax" | "topk" | "cumsum" => {
            "there is no reading by the values of another tensor, and no order of elements"
        }
        "conv" | "conv2d" | "convolution" | "maxpool" | "avgpool" => "there are no windows yet",
        _ => return None,
    })
}

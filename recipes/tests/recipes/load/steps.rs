//! Steps and the operations that they become, as readable pairs.

use super::listing::{listing, operations, with_steps};

#[test]
fn steps_become_operations() {
    let cases: &[(&str, &[&str])] = &[
        (
            "a[u,b,j] = dropout(relu(w[u,i]*x[i,b,j] + c[u]), rate: 0.1)",
            &[
                "a.dot[u,b,j] = contraction: 1 <- a=w[u,i] b=x[i,b,j]",
                "a.bias[u,b,j] = bias: (a + b) <- a=a.dot[u,b,j] b=c[u]",
                "a.relu[u,b,j] = relu: Max(x, 0) <- x=a.bias[u,b,j]",
                "a[u,b,j] = dropout: (x * keep(a, (u*B+b)*J+j, 0.1)) <- x=a.relu[u,b,j]",
            ],
        ),
        (
            "a[u] = w[u,i]*g[i]*w[u,i]*c[u]",
            &[
                "a.map[u,i] = map: (a * b) <- a=w[u,i] b=w[u,i]",
                "a.map2[u,i] = map: (a * b) <- a=a.map[u,i] b=g[i]",
                "a.sum[u] = sum: 1 sum x <- x=a.map2[u,i]",
                "a[u] = map: (a * b) <- a=a.sum[u] b=c[u]",
            ],
        ),
        (
            "a[u,b,j] = x[i,b,j]*w[u,i]*g[i]/half",
            &["a.map[b,j,i] = map: (a * b) <- a=x[i,b,j] b=g[i]", "a[u,b,j] = contraction: 2 <- a=a.map[b,j,i] b=w[u,i]"],
        ),
        (
            "a[b,j,k] = 1/sqrt(size(p)) * softmax(s, over: k)",
            &["a.softmax[b,j,k] = softmax: k <- x=s[b,j,k]", "a[b,j,k] = scale: ((1 / sqrt(#P)) * x) <- x=a.softmax[b,j,k]"],
        ),
        ("a[b,j] = sum(exp(s), over: k)", &["a[b,j] = sum: 1 sum exp(x) <- x=s[b,j,k]"]),
        ("a[b] = mean(x[i,b,j]*g[i], over: [i,j])", &["a[b] = mean: (1 / #I*J) sum (a * b) <- a=x[i,b,j] b=g[i]"]),
        ("a[u,b,j] = sum(w[u,i]*x[i,b,j], over: i)", &["a[u,b,j] = contraction: 1 <- a=w[u,i] b=x[i,b,j]"]),
        (
            "a[u] = (sum(w[u,i]*g[i], over: i) + c[u]) * sigmoid(sum(w[u,i]*g[i], over: i))",
            &[
                "a.sum[u] = sum: 1 sum (a * b) <- a=w[u,i] b=g[i]",
                "a.sigmoid[u] = sigmoid: sigmoid(x) <- x=a.sum[u]",
                "a[u] = map: ((a + b) * c) <- a=a.sum[u] b=c[u] c=a.sigmoid[u]",
            ],
        ),
        (
            "a[u,b,j] = w[u,i]*(x*g[i])",
            &["a.map[u,i] = map: (a * b) <- a=w[u,i] b=g[i]", "a[u,b,j] = contraction: 1 <- a=a.map[u,i] b=x[i,b,j]"],
        ),
        ("a[i,b,j] = batchnorm(x, over: [b,j])", &["a[i,b,j] = norm: b,j 1e-5 <- x=x[i,b,j] and mean=a.mean[i] rstd=a.rstd[i]"]),
        ("a[i,b,j] = x*sigmoid(x) + g[i]", &["a[i,b,j] = map: ((a * sigmoid(a)) + b) <- a=x[i,b,j] b=g[i]"]),
        (
            "a[i] = gelu(gelu(g))*2",
            &[
                "a.gelu[i] = gelu: ((0.5 * x) * (1 + erf((x * 0.7071067811865476)))) <- x=g[i]",
                "a.gelu2[i] = gelu: ((0.5 * x) * (1 + erf((x * 0.7071067811865476)))) <- x=a.gelu[i]",
                "a[i] = scale: (2 * x) <- x=a.gelu2[i]",
            ],
        ),
        (
            "a[i] = max(g, 0) + max(w[u,i], over: u)",
            &["a.max[i] = max: 1 max x <- x=w[u,i]", "a[i] = map: (Max(a, 0) + b) <- a=g[i] b=a.max[i]"],
        ),
        (
            "a[b,j] = x[i,b,j] * s[b,j,k] * c[u] * g[i] * s[b,j,k] * c[u]",
            &[
                "a.map[b,j,k] = map: (a * b) <- a=s[b,j,k] b=s[b,j,k]",
                "a.sum[b,j] = sum: 1 sum x <- x=a.map[b,j,k]",
                "a.map2[b,j,i] = map: (a * b) <- a=x[i,b,j] b=a.sum[b,j]",
                "a.map3[u] = map: (a * b) <- a=c[u] b=c[u]",
                "a.sum2[] = sum: 1 sum x <- x=a.map3[u]",
                "a.map4[b,j,i] = map: (a * b) <- a=a.map2[b,j,i] b=a.sum2[]",
                "a[b,j] = contraction: 1 <- a=a.map4[b,j,i] b=g[i]",
            ],
        ),
        (
            "a[i] = (w[u,i]*c[u] + g[i]) * g[i]",
            &["a.dot[i] = contraction: 1 <- a=w[u,i] b=c[u]", "a[i] = map: ((a + b) * b) <- a=a.dot[i] b=g[i]"],
        ),
        (
            "a[i,b,j] = dropout(x, rate: 0.1) + dropout(x + g[i], rate: half)",
            &[
                "a.dropout[i,b,j] = dropout: (x * keep(a, (i*B+b)*J+j, 0.1)) <- x=x[i,b,j]",
                "a.bias[i,b,j] = bias: (a + b) <- a=x[i,b,j] b=g[i]",
                "a.dropout2[i,b,j] = dropout: (x * keep(a.dropout2, (i*B+b)*J+j, 0.5)) <- x=a.bias[i,b,j]",
                "a[i,b,j] = residual: (a + b) <- a=a.dropout[i,b,j] b=a.dropout2[i,b,j]",
            ],
        ),
        ("a[b,j,k] = where(k <= j, s, -inf)", &["a[b,j,k] = mask: ((#k <= #j) ? x : -inf) <- x=s[b,j,k]"]),
        (
            "a[b,j,k] = s / sum(s, over: k)",
            &["a.sum[b,j] = sum: 1 sum x <- x=s[b,j,k]", "a[b,j,k] = map: (a / b) <- a=s[b,j,k] b=a.sum[b,j]"],
        ),
        (
            "a[u,i] = (w - mean(w, over: i)) * rsqrt(mean(pow(w - mean(w, over: i), 2), over: i) + 1e-6) * g",
            &[
                "a.mean[u] = mean: (1 / #I) sum x <- x=w[u,i]",
                "a.mean2[u] = mean: (1 / #I) sum Pow((a - b), 2) <- a=w[u,i] b=a.mean[u]",
                "a[u,i] = map: (((a - b) * rsqrt((c + 0.000001))) * d) <- a=w[u,i] b=a.mean[u] c=a.mean2[u] d=g[i]",
            ],
        ),
        (
            "a[u] = w[u,i]*g[i]/sum(g, over: i)",
            &[
                "a.sum[] = sum: 1 sum x <- x=g[i]",
                "a.map[i] = map: (a / b) <- a=g[i] b=a.sum[]",
                "a[u] = contraction: 1 <- a=w[u,i] b=a.map[i]",
            ],
        ),
        (
            "a[i,b,j] = dropout(x, rate: 0.1) - dropout(x, rate: 0.1)",
            &[
                "a.dropout[i,b,j] = dropout: (x * keep(a, (i*B+b)*J+j, 0.1)) <- x=x[i,b,j]",
                "a.dropout2[i,b,j] = dropout: (x * keep(a.dropout2, (i*B+b)*J+j, 0.1)) <- x=x[i,b,j]",
                "a[i,b,j] = residual: (a - b) <- a=a.dropout[i,b,j] b=a.dropout2[i,b,j]",
            ],
        ),
        (
            "a[i,b,j] = where(dropout(x, rate: 0.1) > 0, dropout(x, rate: 0.1), 7)",
            &[
                "a.dropout[i,b,j] = dropout: (x * keep(a, (i*B+b)*J+j, 0.1)) <- x=x[i,b,j]",
                "a.dropout2[i,b,j] = dropout: (x * keep(a.dropout2, (i*B+b)*J+j, 0.1)) <- x=x[i,b,j]",
                "a[i,b,j] = mask: (Gt(a, 0) ? b : 7) <- a=a.dropout[i,b,j] b=a.dropout2[i,b,j]",
            ],
        ),
        (
            "a[b,j,k] = sum(dropout(s, rate: 0.1), over: k) - sum(dropout(s, rate: 0.1), over: k) + s",
            &[
                "a.dropout[b,j,k] = dropout: (x * keep(a, (b*J+j)*J+k, 0.1)) <- x=s[b,j,k]",
                "a.sum[b,j] = sum: 1 sum x <- x=a.dropout[b,j,k]",
                "a.dropout2[b,j,k] = dropout: (x * keep(a.dropout2, (b*J+j)*J+k, 0.1)) <- x=s[b,j,k]",
                "a.sum2[b,j] = sum: 1 sum x <- x=a.dropout2[b,j,k]",
                "a[b,j,k] = map: ((a - b) + c) <- a=a.sum[b,j] b=a.sum2[b,j] c=s[b,j,k]",
            ],
        ),
        (
            "a[b,j] = logsumexp(s, over: k)",
            &[
                "a.shift[b,j] = shift: 1 max x <- x=s[b,j,k]",
                "a.sum[b,j] = sum: 1 sum exp((a - (Lt(abs(b), inf) ? b : 0))) <- a=s[b,j,k] b=a.shift[b,j]",
                "a[b,j] = map: ((Lt(abs(a), inf) ? a : 0) + log(b)) <- a=a.shift[b,j] b=a.sum[b,j]",
            ],
        ),
        (
            "a[i] = cross_entropy(dropout(w, rate: 0.1), g, over: u) - log_softmax(g, over: i)",
            &[
                "a.dropout[i,u] = dropout: (x * keep(a, i*U+u, 0.1)) <- x=w[u,i]",
                "a.shift[i] = shift: 1 max x <- x=a.dropout[i,u]",
                "a.sum[i] = sum: 1 sum exp((a - (Lt(abs(b), inf) ? b : 0))) <- a=a.dropout[i,u] b=a.shift[i]",
                "a.sum2[i] = sum: 1 sum (Eq(a, #u) ? (b - (Lt(abs(c), inf) ? c : 0)) : 0) <- a=g[i] b=a.dropout[i,u] c=a.shift[i]",
                "a.map[i] = map: (And(Ge(a, 0), And(Lt(a, #U), Eq(a, floor(a)))) ? (log(b) - c) : inf) <- a=g[i] b=a.sum[i] c=a.sum2[i]",
                "a.shift2[] = shift: 1 max x <- x=g[i]",
                "a.sum3[] = sum: 1 sum exp((a - (Lt(abs(b), inf) ? b : 0))) <- a=g[i] b=a.shift2[]",
                "a.map2[i] = map: ((a - (Lt(abs(b), inf) ? b : 0)) - log(c)) <- a=g[i] b=a.shift2[] c=a.sum3[]",
                "a[i] = residual: (a - b) <- a=a.map[i] b=a.map2[i]",
            ],
        ),
        ("a[j,b,i] = x[i,b,j]", &["a[j,b,i] = map: x <- x=x[i,b,j]"]),
        ("a[b,j] = x[i,b,j] / g[i]", &["a[b,j] = sum: 1 sum (a / b) <- a=x[i,b,j] b=g[i]"]),
        ("a[j] = where(j <= size(p), j, -j)", &["a[j] = map: ((#j <= #P) ? #j : (-1 * #j)) <- "]),
        ("a[u] = c[u] - half*c[u]", &["a.scale[u] = scale: (0.5 * x) <- x=c[u]", "a[u] = residual: (a - b) <- a=c[u] b=a.scale[u]"]),
        ("a[i,b,k] = x[i,b,k]", &["a[i,b,k] = map: x <- x=x[i,b,k]"]),
    ];
    for (step, expected) in cases {
        assert_eq!(operations(&[step]), *expected, "for {step}");
    }
}

/// The design's spelling, without quotes around the colon, is the same recipe.
#[test]
fn constants_are_numbers_or_made_of_numbers_and_sizes() {
    let text = with_steps(&["a[i] = third * scale * next * g[i]"]);
    let text = text.replace("constants: {half: 0.5}", "constants: {third: 1 / 3, scale: 1 / sqrt(size(p)), next: 'pow(2 * third, 2)'}");
    let recipe = recipes::load::load_str("t.yaml", &text, &[]).unwrap();
    assert_eq!(listing(&recipe), ["a[i] = scale: (((0.3333333333333333 * (1 / sqrt(#P))) * 0.4444444444444444) * x) <- x=g[i]"]);
}

#[test]
fn steps_need_no_quotes() {
    let plain = operations(&["a[b,j,k] = dropout(softmax(s, over: k), rate: 0.1)"]);
    assert_eq!(plain, operations(&["\"a[b,j,k] = dropout(softmax(s, over: k), rate: 0.1)\""]));
    assert_eq!(plain, operations(&[">-\n      a[b,j,k] =\n        dropout(softmax(s, over:\n        k), rate: 0.1)"]));
}

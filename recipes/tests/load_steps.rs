#![allow(dead_code)]
mod load_support;
use load_support::*;
use recipes::load::load;
#[test]
fn look() {
    for f in ["mha", "bert-large-encoder", "gpt2-decoder", "mlp", "softmax", "mha-cross", "mha-general", "bert-base-encoder"] {
        match load(std::path::Path::new(&format!("{f}.yaml")), &[]) {
            Ok(r) => {
                println!("--- {f} {:?} {:?} {:?}", r.program.sizes, r.program.dims, r.train);
                for l in listing(&r) {
                    println!("{l}");
                }
            }
            Err(e) => println!("{e}"),
        }
    }
    for s in [
        "a[u,b,j] = dropout(relu(w[u,i]*x[i,b,j] + c[u]), rate: 0.1)",
        "a[u] = w[u,i]*g[i]*w[u,i]*c[u]",
        "a[u,b,j] = x[i,b,j]*w[u,i]*g[i]/half",
        "a[b,j] = softmax(s, over: k)[b]",
        "a[b,j] = sum(exp(s), over: k)",
        "a[b] = mean(x[i,b,j]*g[i], over: [i,j])",
        "a[i,b,j] = batchnorm(x, over: [b,j]) ",
        "a[i,b,j] = x*sigmoid(x) + g[i]",
        "a[i] = x[i,b,q]",
        "a[i] = g[i]*c[u]",
        "a[i]=gelu(gelu(g))*2",
        "a[i]= max(g, 0) + max(w[u,i], over: u)",
        "a[b,j] = x[i,b,j] * s[b,j,k] * c[u] * g[i] * s[b,j,k] * c[u]",
        "a[j] = where(j < size(p), j, -j)",
        "a = -(half)",
        "a[i,j] = g[i]",
        "a[i] = d[i]",
        "a[i] = (w[u,i]*c[u] + g[i]) * g[i]",
    ] {
        println!("## {s}");
        match recipes::load::load_str("t.yaml", &with_steps(&[s]), &[]) {
            Ok(r) => {
                for l in listing(&r) {
                    println!("  {l}");
                }
            }
            Err(e) => println!("{e}"),
        }
    }
}

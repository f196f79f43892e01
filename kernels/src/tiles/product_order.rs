//! The order of a tile's statements: a product comes right before what reads its sums, so that micro-kernels can compute that from
//! registers.

use crate::loopnest::{MemorySpace, NestTensor};
use crate::maps::flatten::Flat;
use indexmap::IndexMap;

/// The places of statements in an order in which each product has moved behind statements that neither read its sums nor write what it
/// touches, up to the first one that reads them.
///
/// The parts of a joined tensor, such as those of a fire module, are made one after the other: without this order both products come first,
/// and the results of one of them go through memory.
pub fn products_before_their_readers(statements: &[Flat], tensors: &IndexMap<String, NestTensor>) -> Vec<usize> {
    let root = |data: &str| match tensors.get(data).map(|t| &t.space) {
        Some(MemorySpace::Heap { root, .. }) => root.clone(),
        _ => data.to_string(),
    };
    let mut order: Vec<usize> = (0..statements.len()).collect();
    for (n, product) in statements.iter().enumerate().filter(|(_, flat)| flat.is_gemm) {
        let Some(from) = order.iter().position(|at| *at == n) else { continue };
        let made = root(&product.statement.write.data);
        let reads = |at: usize| statements[at].statement.reads.iter().any(|(_, e)| root(&e.data) == made);
        let Some(to) = (from + 1..order.len()).find(|at| reads(order[*at])) else { continue };
        let touches = |data: String| data == made || product.statement.reads.iter().any(|(_, e)| root(&e.data) == data);
        let passes = order[from + 1..to].iter().all(|at| !touches(root(&statements[*at].statement.write.data)));
        if passes && !statements[order[to]].is_gemm {
            order[from..to].rotate_left(1);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopnest::{Element, NestStatement};
    use sdfg::{Combine, Scalar};

    fn statement(write: &str, reads: &[&str], is_gemm: bool) -> Flat {
        let element = |data: &str| Element { data: data.into(), subscripts: Vec::new(), fill: None };
        let reads = reads.iter().map(|data| (data.to_string(), element(data))).collect();
        let combine = is_gemm.then_some(Combine::Sum);
        let statement = NestStatement { name: write.into(), code: Scalar::Const(0.0), reads, write: element(write), combine };
        Flat { inner: Vec::new(), statement, is_gemm }
    }

    fn order(statements: &[Flat]) -> Vec<&str> {
        let places = products_before_their_readers(statements, &IndexMap::new());
        places.into_iter().map(|n| statements[n].statement.name.as_str()).collect()
    }

    #[test]
    fn each_product_of_a_fire_module_comes_before_its_reader() {
        let fire = [
            statement("squeeze.dot", &["k", "x"], true),
            statement("squeeze", &["squeeze.dot"], false),
            statement("three.dot", &["k3", "squeeze"], true),
            statement("one.dot", &["k1", "squeeze"], true),
            statement("one", &["one.dot", "b1"], false),
            statement("three", &["three.dot", "b3"], false),
        ];
        assert_eq!(order(&fire), ["squeeze.dot", "squeeze", "one.dot", "one", "three.dot", "three"]);
    }

    #[test]
    fn a_product_stays_before_what_writes_its_factors_and_before_products_that_read_it() {
        let written_over = [statement("a.dot", &["k", "x"], true), statement("x", &["y"], false), statement("a", &["a.dot"], false)];
        assert_eq!(order(&written_over), ["a.dot", "x", "a"]);
        let chain = [statement("a.dot", &["k", "x"], true), statement("y", &["z"], false), statement("b.dot", &["l", "a.dot"], true)];
        assert_eq!(order(&chain), ["a.dot", "y", "b.dot"]);
    }
}

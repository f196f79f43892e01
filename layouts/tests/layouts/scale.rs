//! Selection at the size of a transformer layer.

use super::encoder::{Size, encoder};
use layouts::exact::SearchLimits;
use layouts::selection::{Method, select, select_top};

#[test]
fn a_layer_is_solved_within_its_limits_and_better_than_by_the_other_methods() {
    let (program, store) = encoder(Size { layouts: 12, measured: 60 });
    let limits = SearchLimits { table: 1 << 16, work: 1 << 26 };
    let exact = select(&program, &store, Method::Exact, limits).unwrap();
    assert!(exact.bound_ms >= exact.sum_of_minima_ms && exact.bound_ms <= exact.total_ms);
    for method in Method::ALL {
        let other = select(&program, &store, method, limits).unwrap();
        assert!(other.total_ms >= exact.total_ms && other.sum_of_minima_ms <= exact.total_ms);
    }
    let top = select_top(&program, &store, 2, limits).unwrap();
    assert_eq!(top.len(), 2);
    assert!(top.windows(2).all(|w| w[0].total_ms <= w[1].total_ms));
    assert!(top[0].total_ms <= exact.total_ms);
}

//! A layered drawing of a directed graph: sources on top, edges downwards, few crossings (Sugiyama, Tagawa, Toda 1981).
//!
//! - Layers by longest path; sources sink to their first reader.
//! - Edges that skip layers get a waypoint in each.
//! - Order within the layers by barycentres, swept down and up.
//! - Places by least squares: each node is drawn towards the mean of its neighbours, and overlaps are resolved exactly
//!   by pooling (isotonic regression), which keeps the order.

/// Size of one node; all lengths are in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub width: f64,
    pub height: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawing {
    /// Centre of each node.
    pub nodes: Vec<Point>,
    /// For each edge the points from the centre of its tail, through waypoints, to the centre of its head. Empty for
    /// loops and for edges that name no node.
    pub edges: Vec<Vec<Point>>,
    pub width: f64,
    pub height: f64,
}

const GAP_X: f64 = 22.0;
const GAP_Y: f64 = 54.0;
const MARGIN: f64 = 24.0;
const WAYPOINT_WIDTH: f64 = 6.0;
const SWEEPS: usize = 16;

/// Draws `nodes` with `edges` as pairs of indices. Cycles are allowed: an edge that closes one points upwards.
pub fn draw(nodes: &[Size], edges: &[(usize, usize)]) -> Drawing {
    if nodes.is_empty() {
        return Drawing { edges: vec![Vec::new(); edges.len()], ..Drawing::default() };
    }
    let layer = layers(nodes.len(), edges);
    let mut work = Work { width: nodes.iter().map(|n| n.width).collect(), layer, x: Vec::new(), links: Vec::new() };
    let chains: Vec<Vec<usize>> = edges.iter().map(|edge| work.route(*edge, nodes.len())).collect();
    let order = work.order();
    work.place(&order);
    work.finish(nodes, &chains)
}

/// Longest path from a source. Where a cycle leaves no source, the first node that is left starts anew.
fn layers(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut incoming = vec![0usize; count];
    let mut outgoing = vec![Vec::new(); count];
    for (from, to) in edges.iter().filter(|(f, t)| f != t && *f < count && *t < count) {
        incoming[*to] += 1;
        outgoing[*from].push(*to);
    }
    let mut layer = vec![0usize; count];
    let mut done = vec![false; count];
    let mut ready: Vec<usize> = (0..count).filter(|n| incoming[*n] == 0).collect();
    let mut next_unseen = 0;
    while let Some(node) = ready.pop().or_else(|| (next_unseen..count).find(|n| !done[*n])) {
        if done[node] {
            continue;
        }
        done[node] = true;
        while next_unseen < count && done[next_unseen] {
            next_unseen += 1;
        }
        for to in &outgoing[node] {
            if !done[*to] {
                layer[*to] = layer[*to].max(layer[node] + 1);
                incoming[*to] = incoming[*to].saturating_sub(1);
                if incoming[*to] == 0 {
                    ready.push(*to);
                }
            }
        }
    }
    // A source stands right above the first node that reads it rather than at the very top.
    for node in 0..count {
        let reads = edges.iter().any(|(f, t)| *t == node && *f != node && *f < count);
        let first = outgoing[node].iter().map(|to| layer[*to]).min();
        if let (false, Some(first)) = (reads, first) {
            layer[node] = first.saturating_sub(1);
        }
    }
    layer
}

/// Nodes and waypoints together.
struct Work {
    width: Vec<f64>,
    layer: Vec<usize>,
    x: Vec<f64>,
    /// Between neighbouring layers, from upper to lower.
    links: Vec<(usize, usize)>,
}

impl Work {
    /// The chain of nodes and waypoints along an edge, tail first.
    fn route(&mut self, (from, to): (usize, usize), count: usize) -> Vec<usize> {
        if from == to || from >= count || to >= count {
            return Vec::new();
        }
        let (upper, lower) = if self.layer[from] <= self.layer[to] { (from, to) } else { (to, from) };
        let mut chain = vec![upper];
        for layer in self.layer[upper] + 1..self.layer[lower] {
            self.layer.push(layer);
            self.width.push(WAYPOINT_WIDTH);
            chain.push(self.layer.len() - 1);
        }
        chain.push(lower);
        if self.layer[upper] < self.layer[lower] {
            self.links.extend(chain.windows(2).map(|w| (w[0], w[1])));
        }
        if upper != from {
            chain.reverse();
        }
        chain
    }

    fn neighbours(&self) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
        let (mut above, mut below) = (vec![Vec::new(); self.layer.len()], vec![Vec::new(); self.layer.len()]);
        for (upper, lower) in &self.links {
            above[*lower].push(*upper);
            below[*upper].push(*lower);
        }
        (above, below)
    }

    /// Members of each layer from left to right.
    fn order(&self) -> Vec<Vec<usize>> {
        let depth = self.layer.iter().max().map_or(0, |l| l + 1);
        let mut order = vec![Vec::new(); depth];
        for (node, layer) in self.layer.iter().enumerate() {
            order[*layer].push(node);
        }
        let (above, below) = self.neighbours();
        let mut best = order.clone();
        let mut least = crossings(&order, &below);
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            let fixed = if down { &above } else { &below };
            let mut rank = ranks(&order, self.layer.len());
            let turns: Vec<usize> = if down { (0..depth).collect() } else { (0..depth).rev().collect() };
            for layer in turns {
                let key = |node: &usize| mean(fixed[*node].iter().map(|n| rank[*n])).unwrap_or(rank[*node]);
                let mut keyed: Vec<(f64, usize)> = order[layer].iter().map(|n| (key(n), *n)).collect();
                keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
                order[layer] = keyed.into_iter().map(|(_, n)| n).collect();
                let size = order[layer].len() as f64;
                for (place, node) in order[layer].iter().enumerate() {
                    rank[*node] = (place as f64 + 0.5) / size;
                }
            }
            let now = crossings(&order, &below);
            if now < least {
                (least, best) = (now, order.clone());
            }
        }
        best
    }

    fn place(&mut self, order: &[Vec<usize>]) {
        let (above, below) = self.neighbours();
        self.x = vec![0.0; self.layer.len()];
        for members in order {
            let wish = vec![0.0; members.len()];
            self.settle(members, &wish);
        }
        for sweep in 0..2 * SWEEPS {
            let fixed = if sweep % 2 == 0 { &above } else { &below };
            let turns: Vec<&Vec<usize>> = if sweep % 2 == 0 { order.iter().collect() } else { order.iter().rev().collect() };
            for members in turns {
                let wish: Vec<f64> = members.iter().map(|n| mean(fixed[*n].iter().map(|m| self.x[*m])).unwrap_or(self.x[*n])).collect();
                self.settle(members, &wish);
            }
        }
    }

    /// The places nearest to `wish` (least squares) that keep the order and the gaps. Subtracting from each wish the node's place in a
    /// packed layer turns the gaps into `≥ 0`; pooling adjacent violators solves that exactly.
    fn settle(&mut self, members: &[usize], wish: &[f64]) {
        let mut packed = 0.0;
        let mut previous = 0.0;
        // Blocks of nodes pushed together: (sum of shifted wishes, nodes).
        let mut blocks: Vec<(f64, Vec<(usize, f64)>)> = Vec::new();
        for (n, (node, wish)) in members.iter().zip(wish).enumerate() {
            let half = self.width[*node] / 2.0;
            packed += if n == 0 { 0.0 } else { previous + GAP_X + half };
            previous = half;
            let mut block = (wish - packed, vec![(*node, packed)]);
            while let Some(last) = blocks.pop_if(|last| last.0 / last.1.len() as f64 > block.0 / block.1.len() as f64) {
                let mut nodes = last.1;
                nodes.append(&mut block.1);
                block = (last.0 + block.0, nodes);
            }
            blocks.push(block);
        }
        for (sum, nodes) in blocks {
            let shift = sum / nodes.len() as f64;
            for (node, packed) in nodes {
                self.x[node] = packed + shift;
            }
        }
    }

    fn finish(self, nodes: &[Size], chains: &[Vec<usize>]) -> Drawing {
        let left = self.x.iter().zip(&self.width).map(|(x, w)| x - w / 2.0).fold(f64::INFINITY, f64::min);
        let right = self.x.iter().zip(&self.width).map(|(x, w)| x + w / 2.0).fold(f64::NEG_INFINITY, f64::max);
        let row = nodes.iter().map(|n| n.height).fold(0.0, f64::max);
        let depth = self.layer.iter().max().map_or(0, |l| l + 1) as f64;
        let at = |n: &usize| Point { x: self.x[*n] - left + MARGIN, y: MARGIN + row / 2.0 + self.layer[*n] as f64 * (row + GAP_Y) };
        Drawing {
            nodes: (0..nodes.len()).map(|n| at(&n)).collect(),
            edges: chains.iter().map(|chain| chain.iter().map(at).collect()).collect(),
            width: right - left + 2.0 * MARGIN,
            height: depth * (row + GAP_Y) - GAP_Y + 2.0 * MARGIN,
        }
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let count = values.len();
    (count > 0).then(|| values.sum::<f64>() / count as f64)
}

/// Place within the layer, scaled to [0, 1] so that layers of different sizes compare.
fn ranks(order: &[Vec<usize>], count: usize) -> Vec<f64> {
    let mut rank = vec![0.0; count];
    for members in order {
        for (place, node) in members.iter().enumerate() {
            rank[*node] = (place as f64 + 0.5) / members.len() as f64;
        }
    }
    rank
}

/// Pairs of links that cross. Layers are small enough (hundreds) for insertion into a sorted list.
fn crossings(order: &[Vec<usize>], below: &[Vec<usize>]) -> usize {
    let mut place = vec![0; below.len()];
    for members in order {
        for (n, node) in members.iter().enumerate() {
            place[*node] = n;
        }
    }
    let mut total = 0;
    for members in order {
        let mut seen: Vec<usize> = Vec::new();
        for node in members {
            let mut ends: Vec<usize> = below[*node].iter().map(|n| place[*n]).collect();
            ends.sort_unstable();
            total += ends.iter().map(|end| seen.len() - seen.partition_point(|s| s <= end)).sum::<usize>();
            for end in ends {
                let at = seen.partition_point(|s| *s <= end);
                seen.insert(at, end);
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOX: Size = Size { width: 100.0, height: 30.0 };

    #[test]
    fn a_crossing_is_undone() {
        // 0→3 and 1→2 cross in the order given.
        let drawing = draw(&[BOX; 4], &[(0, 3), (1, 2)]);
        let x = |n: usize| drawing.nodes[n].x;
        assert_eq!(x(0) < x(1), x(3) < x(2));
    }

    #[test]
    fn long_edges_bend_around_nodes() {
        let drawing = draw(&[BOX; 3], &[(0, 1), (1, 2), (0, 2)]);
        assert_eq!(drawing.edges[2].len(), 3, "one waypoint in the layer of node 1");
        assert!((drawing.edges[2][1].x - drawing.nodes[1].x).abs() >= BOX.width / 2.0);
    }

    #[test]
    fn empty_graphs_loops_and_unknown_nodes_are_harmless() {
        assert_eq!(draw(&[], &[(0, 1)]).edges, vec![Vec::new()]);
        let drawing = draw(&[BOX; 2], &[(0, 0), (0, 9), (0, 1), (1, 0)]);
        assert!(drawing.edges[0].is_empty() && drawing.edges[1].is_empty());
        assert_eq!(drawing.edges[3].len(), 2);
    }

    proptest! {
        #[test]
        fn nodes_never_overlap_and_edges_go_down(
            count in 1usize..24,
            pairs in prop::collection::vec((0usize..24, 0usize..24), 0..60),
        ) {
            let edges: Vec<(usize, usize)> = pairs.into_iter().map(|(a, b)| (a % count, b % count)).filter(|(a, b)| a < b).collect();
            let drawing = draw(&vec![BOX; count], &edges);
            for (a, p) in drawing.nodes.iter().enumerate() {
                for q in &drawing.nodes[a + 1..] {
                    // A micrometre of a pixel covers the rounding of sums of a few thousand pixels in f64.
                    prop_assert!(p.y != q.y || (p.x - q.x).abs() >= BOX.width + GAP_X - 1e-6);
                }
                prop_assert!(p.x >= BOX.width / 2.0 && p.x + BOX.width / 2.0 <= drawing.width);
            }
            for (from, to) in edges {
                prop_assert!(drawing.nodes[from].y < drawing.nodes[to].y);
            }
        }
    }
}

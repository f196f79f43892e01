//! Operators and their dependences, in a topological order that the caller chooses.

use serde::{Deserialize, Serialize};

/// Why a list of edges is no graph to plan for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DagError {
    #[error("the edge {from} → {to} names an operator that does not exist; there are {operators}")]
    NoOperator { from: u32, to: u32, operators: usize },
    #[error("the order lists {listed} operators, each must be listed once; there are {operators}")]
    Order { listed: usize, operators: usize },
    #[error("the edge {from} → {to} goes against the order: list every operator after all that it reads from")]
    Against { from: u32, to: u32 },
}

/// A graph without cycles. Operators are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dag {
    /// Every edge once, sorted.
    edges: Vec<(u32, u32)>,
    order: Vec<u32>,
    #[serde(skip)]
    position: Vec<u32>,
    #[serde(skip)]
    after: Lists,
    #[serde(skip)]
    before: Lists,
}

/// For each operator a list of operators, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lists {
    begins: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    fn new(operators: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut begins = vec![0u32; operators + 1];
        pairs.clone().for_each(|(of, _)| begins[of as usize + 1] += 1);
        for n in 0..operators {
            begins[n + 1] += begins[n];
        }
        let mut next = begins.clone();
        let mut items = vec![0; begins[operators] as usize];
        for (of, item) in pairs {
            items[next[of as usize] as usize] = item;
            next[of as usize] += 1;
        }
        Lists { begins, items }
    }

    fn of(&self, operator: u32) -> &[u32] {
        &self.items[self.begins[operator as usize] as usize..self.begins[operator as usize + 1] as usize]
    }
}

impl Dag {
    /// The graph of these edges. `order` lists every operator after those that it depends on; candidates that are intervals of it are
    /// planned fastest.
    ///
    /// # Errors
    /// An edge to no operator, or against the order.
    pub fn new(operators: usize, edges: impl IntoIterator<Item = (u32, u32)>, order: Vec<u32>) -> Result<Self, DagError> {
        let mut edges: Vec<(u32, u32)> = edges.into_iter().collect();
        edges.sort_unstable();
        edges.dedup();
        if let Some((from, to)) = edges.iter().find(|(from, to)| *from as usize >= operators || *to as usize >= operators) {
            return Err(DagError::NoOperator { from: *from, to: *to, operators });
        }
        let mut position = vec![u32::MAX; operators];
        for (at, operator) in order.iter().enumerate() {
            if let Some(position) = position.get_mut(*operator as usize) {
                *position = at as u32;
            }
        }
        if order.len() != operators || position.contains(&u32::MAX) {
            return Err(DagError::Order { listed: order.len(), operators });
        }
        if let Some((from, to)) = edges.iter().find(|(from, to)| position[*from as usize] >= position[*to as usize]) {
            return Err(DagError::Against { from: *from, to: *to });
        }
        let after = Lists::new(operators, edges.iter().copied());
        let before = Lists::new(operators, edges.iter().map(|(from, to)| (*to, *from)));
        Ok(Dag { edges, order, position, after, before })
    }

    /// The graph of these edges, numbered in a topological order already.
    ///
    /// # Errors
    /// As [`Dag::new`].
    pub fn in_order(operators: usize, edges: impl IntoIterator<Item = (u32, u32)>) -> Result<Self, DagError> {
        Dag::new(operators, edges, (0..operators as u32).collect())
    }

    /// Number of operators.
    pub fn operators(&self) -> usize {
        self.order.len()
    }

    pub fn edges(&self) -> &[(u32, u32)] {
        &self.edges
    }

    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The place of an operator in the order.
    pub fn position(&self, operator: u32) -> u32 {
        self.position[operator as usize]
    }

    /// The operators that read what an operator writes.
    pub fn after(&self, operator: u32) -> &[u32] {
        self.after.of(operator)
    }

    /// The operators whose results an operator reads.
    pub fn before(&self, operator: u32) -> &[u32] {
        self.before.of(operator)
    }
}

/// Finds paths that leave a set of operators and enter it again.
pub struct Convexity<'a> {
    dag: &'a Dag,
    /// By operator: the number of the last question in which it was a member, and in which it was reached.
    member: Vec<u32>,
    reached: Vec<u32>,
    question: u32,
    waiting: Vec<u32>,
}

impl<'a> Convexity<'a> {
    pub fn new(dag: &'a Dag) -> Self {
        let none = vec![0; dag.operators()];
        Convexity { dag, member: none.clone(), reached: none, question: 0, waiting: Vec::new() }
    }

    /// Whether no path between members passes another operator. Time: the edges between the first and the last member in the order.
    pub fn is_convex(&mut self, members: &[u32]) -> bool {
        let positions = || members.iter().map(|m| self.dag.position(*m));
        let (Some(first), Some(last)) = (positions().min(), positions().max()) else { return true };
        if (last - first) as usize + 1 == members.len() {
            return true;
        }
        self.question += 1;
        members.iter().for_each(|m| self.member[*m as usize] = self.question);
        self.waiting.clear();
        for member in members {
            self.spread(*member, last);
        }
        while let Some(operator) = self.waiting.pop() {
            if self.dag.after(operator).iter().any(|next| self.member[*next as usize] == self.question) {
                return false;
            }
            self.spread(operator, last);
        }
        true
    }

    /// Lists what reads from an operator, is no member, and comes before the last member.
    fn spread(&mut self, operator: u32, last: u32) {
        for next in self.dag.after(operator) {
            let at = *next as usize;
            if self.dag.position(*next) < last && self.member[at] != self.question && self.reached[at] != self.question {
                self.reached[at] = self.question;
                self.waiting.push(*next);
            }
        }
    }
}

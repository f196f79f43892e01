//! A topological order of operators that is kept while patterns of them become one.
//!
//! Before each merge the operators between its first and its last member are looked at, and only these change places: those that depend
//! on the pattern go behind it. Members of a merged pattern stay side by side.

use super::dag::Dag;

pub struct OperatorOrder<'a> {
    dag: &'a Dag,
    /// Operators in order, and the place of each.
    order: Vec<u32>,
    place: Vec<u32>,
    /// By operator: the pattern that it has been merged into, from 1; or 0.
    merged: Vec<u32>,
    patterns: u32,
    /// By operator: the number of the last question in which it was found to depend on the pattern, or to be a member.
    behind: Vec<u32>,
    member: Vec<u32>,
    question: u32,
}

impl<'a> OperatorOrder<'a> {
    pub fn new(dag: &'a Dag) -> Self {
        let n = dag.operators();
        let place = (0..n as u32).map(|operator| dag.position(operator)).collect();
        let none = vec![0; n];
        OperatorOrder {
            dag,
            order: dag.order().to_vec(),
            place,
            merged: none.clone(),
            patterns: 0,
            behind: none.clone(),
            member: none,
            question: 0,
        }
    }

    pub fn is_free(&self, members: &[u32]) -> bool {
        members.iter().all(|m| self.merged[*m as usize] == 0)
    }

    /// Makes free operators one, unless the graph of kernels would have a cycle then: whether it was done.
    pub fn merge(&mut self, members: &[u32]) -> bool {
        let places = || members.iter().map(|m| self.place[*m as usize] as usize);
        let (Some(first), Some(last)) = (places().min(), places().max()) else { return true };
        self.question += 1;
        let question = self.question;
        members.iter().for_each(|m| self.member[*m as usize] = question);
        // In order: what reads a member, or what depends on one, depends on the pattern. A merged pattern depends as a whole.
        let (mut others, mut dependent) = (Vec::new(), Vec::new());
        let mut at = first;
        while at <= last {
            let operator = self.order[at];
            let pattern = self.merged[operator as usize];
            let mut end = at + 1;
            while pattern != 0 && end < self.order.len() && self.merged[self.order[end] as usize] == pattern {
                end += 1;
            }
            let node = at..end;
            at = end;
            let reads = |of: u32, mark: &[u32]| self.dag.before(of).iter().any(|b| mark[*b as usize] == question);
            let depends = self.order[node.clone()].iter().any(|o| reads(*o, &self.behind));
            if self.member[operator as usize] == question {
                // A member that depends on the pattern through another operator.
                if depends {
                    return false;
                }
            } else if depends || self.order[node.clone()].iter().any(|o| reads(*o, &self.member)) {
                self.order[node.clone()].iter().for_each(|o| self.behind[*o as usize] = question);
                dependent.extend_from_slice(&self.order[node]);
            } else {
                others.extend_from_slice(&self.order[node]);
            }
        }
        self.patterns += 1;
        let mut own = members.to_vec();
        own.sort_unstable_by_key(|m| self.place[*m as usize]);
        own.iter().for_each(|m| self.merged[*m as usize] = self.patterns);
        for (offset, operator) in others.into_iter().chain(own).chain(dependent).enumerate() {
            self.order[first + offset] = operator;
            self.place[operator as usize] = (first + offset) as u32;
        }
        true
    }

    /// The operators in their order now.
    pub fn operators(&self) -> &[u32] {
        &self.order
    }
}

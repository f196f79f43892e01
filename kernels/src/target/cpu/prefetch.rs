//! Prefetch in C: a product gets the addresses of its factors at the next point of the outer range, and loads them into the cache.

use crate::loopnest::{Element, Tag};
use crate::target::cpu::dialect::CPrinter;

impl CPrinter<'_> {
    /// C texts of where the next point finds two factors, given where this one does and whether each is wanted; `0` where all points
    /// find it at one place, or it is made inside.
    pub fn next(&mut self, factors: [(&Element, &str, bool); 2], level: usize) -> [String; 2] {
        let nest = self.nest;
        let plain = nest.outer.iter().all(|l| l.tag == Tag::Core);
        let moves = |e: &Element| nest.outer.iter().any(|l| l.count > 1 && e.subscripts.iter().any(|s| s.symbols().contains(&l.index)));
        let wanted = factors.map(|(element, _, wanted)| wanted && plain && self.is_given(&element.data) && moves(element));
        if wanted == [false, false] {
            return ["0".into(), "0".into()];
        }
        let number = self.fresh("");
        // The last index runs fastest; each of the others moves on where all behind it start again.
        let (mut behind, mut there): (Vec<String>, Vec<String>) = (vec![], vec![]);
        for each in nest.outer.iter().rev() {
            let (count, at) = (self.count(&each.index, each.count), self.index(&each.index));
            let next = format!("next{number}_{}", behind.len());
            let stays = if behind.is_empty() { String::new() } else { format!("({}) != 0 ? {at} : ", behind.join(" | ")) };
            self.line(level, format!("const int64_t {next} = {stays}{at} + 1 < {count} ? {at} + 1 : 0;"));
            there.push(format!("{at} = {next}"));
            behind.push(next);
        }
        let names = ["a", "b"].map(|factor| format!("next_{factor}{number}"));
        self.line(level, format!("const void *{} = 0, *{} = 0;", names[0], names[1]));
        self.line(level, "{");
        self.line(level + 1, format!("const int64_t {};", there.join(", ")));
        for (name, ((_, at, _), wanted)) in names.iter().zip(factors.iter().zip(wanted)) {
            if wanted {
                self.line(level + 1, format!("{name} = {at};"));
            }
        }
        self.line(level, "}");
        names
    }
}

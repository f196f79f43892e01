//! C of one micro-kernel of a direct product: a register block of sums over the whole depth.

use super::block_rows::{BlockRows, Segment};
use super::next_rows::{LINE, NextRows};
use std::collections::BTreeSet;
use std::fmt::Write;

/// A loop over the depth: iterations, and elements between them in the factor of vectors and in the other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepthLoop {
    pub count: i64,
    pub strides: [i64; 2],
    pub clip: Clip,
}

/// What a loop over the depth leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clip {
    None,
    /// The caller gives how many iterations there are.
    Counted,
    /// Of each row of the block, the iterations that count.
    Rows(Vec<Vec<bool>>),
}

/// Distances in elements, all of them known when the text is made: addresses are one register and a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroKernel {
    /// Lanes of a vector.
    pub lanes: i64,
    pub vectors: i64,
    pub rows: BlockRows,
    /// From outer to inner.
    pub depth: Vec<DepthLoop>,
    /// Between vectors, and between lanes, in the factor of vectors.
    pub vector: [i64; 2],
    /// Between rows in the other factor.
    pub row: [i64; 2],
    /// Where the other factor has lanes as well, and is multiplied vector by vector: between its vectors, and between its lanes.
    pub other: Option<[i64; 2]>,
    /// Whether vectors of the two factors may be read whole, though fewer lanes are results.
    pub whole: [bool; 2],
    /// In the result: between rows, between vectors, between lanes.
    pub out_rows: [i64; 2],
    pub out: [i64; 2],
    /// Whether the last vector alone may have fewer lanes, or else each of them.
    pub last_is_partial: bool,
    /// What follows the sums: C of its statements, and the elements that it touches.
    pub epilogue: Option<(String, Vec<EpilogueStrides>)>,
    /// Vectors that are brought near at a distance from the factor of vectors that a caller gives: those of a later call.
    pub brings: Option<Brought>,
    /// Elements of the other factor that a later call reads, by their distance.
    pub next: NextRows,
    /// Whether what it writes, or an epilogue reads for each sum, is brought near before it multiplies.
    pub brings_results: bool,
}

/// What a micro-kernel asks for while it multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brought {
    /// Vectors for each step of the depth that asks.
    pub vectors: i64,
    /// Of the steps of a round, one of so many asks.
    pub every: i64,
}

/// Distances between the elements that an epilogue touches for rows, vectors and lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpilogueStrides {
    pub rows: [i64; 2],
    pub vector: i64,
    pub lane: i64,
    pub is_written: bool,
}

/// Steps of the depth in one round of the innermost loop.
const STEPS: i64 = 4;

/// Steps of a round of the innermost of some loops over the depth.
pub fn steps_of_round(depth: &[DepthLoop]) -> i64 {
    depth.last().map_or(1, |d| d.count.min(STEPS))
}

impl MicroKernel {
    fn each_row(&self) -> impl Iterator<Item = (i64, i64, i64)> + '_ {
        self.rows.each().into_iter()
    }

    /// The function: its name, and its text, which is the same wherever the name is.
    pub fn code(&self) -> (String, String) {
        let mut body = String::new();
        let sums = || self.each_row().flat_map(|(i, ..)| (0..self.vectors).map(move |v| (i, v)));
        for (i, v) in sums() {
            let _ = writeln!(body, "    reg_t c{i}_{v} = {{0}};");
        }
        let names: Vec<String> = (0..self.vectors).map(|v| format!("w{v}")).collect();
        let _ = writeln!(body, "    reg_t x, {};\n    (void)x, (void)lanes;", names.join(", "));
        if !self.next.in_each_round {
            self.bring_next_rows(&mut body, "    ");
        }
        if self.brings_results {
            self.bring_results(&mut body);
        }
        self.nest(&mut body, 0, "    ", &|_| true);
        for (i, v) in sums() {
            let _ = writeln!(body, "    c{i}_{v} *= scale;");
        }
        let whole = if self.last_is_partial { self.vectors * self.lanes } else { self.lanes };
        if self.epilogue.is_none() && self.out[1] == 1 {
            let _ = writeln!(body, "    if (lanes >= {whole}) {{\n        if (add) {{");
            let places: Vec<(i64, i64, i64)> = self
                .each_row()
                .flat_map(|(i, a, b)| (0..self.vectors).map(move |v| (i, v, a * self.out_rows[0] + b * self.out_rows[1] + v * self.out[0])))
                .collect();
            for (i, v, at) in &places {
                let _ = writeln!(body, "            c{i}_{v} += *(const lanes_t *)(c + {at});");
            }
            let _ = writeln!(body, "        }}");
            for (i, v, at) in &places {
                let _ = writeln!(body, "        *(lanes_t *)(c + {at}) = c{i}_{v};");
            }
            let _ = writeln!(body, "        return;\n    }}");
        }
        self.store_room(&mut body);
        match &self.epilogue {
            Some((text, places)) => self.follow(&mut body, text, places, whole),
            None => self.scatter(&mut body),
        }
        let name = format!("direct_{}", &blake3::hash(body.as_bytes()).to_hex()[..16]);
        let guard = name.to_uppercase();
        let pointer = |(n, place): (usize, &EpilogueStrides)| format!(", {}real *t{n}", if place.is_written { "" } else { "const " });
        let touched: String = self.epilogue.iter().flat_map(|(_, places)| places).enumerate().map(pointer).collect();
        let result = if self.epilogue.is_none() { ", real *restrict c, int64_t add" } else { "" };
        let ahead = if self.brings.is_some() { ", int64_t ahead" } else { "" };
        let counted = |(n, d): (usize, &DepthLoop)| (d.clip == Clip::Counted).then(|| format!(", int64_t n{n}"));
        let counts: String = self.depth.iter().enumerate().filter_map(counted).collect();
        let parameters =
            format!("const real *restrict w, const real *restrict s{result}, real scale, int64_t lanes{touched}{ahead}{counts}");
        let text =
            format!("#ifndef {guard}\n#define {guard}\nstatic __attribute__((noinline)) void {name}({parameters})\n{{\n{body}}}\n#endif\n");
        (name, text)
    }

    fn bring_next_rows(&self, body: &mut String, indent: &str) {
        for at in &self.next.lines {
            let _ = writeln!(body, "{indent}BRING_NEAR(s + {at});");
        }
    }

    /// Asks for the lines that the end of the function touches: they come while it multiplies.
    fn bring_results(&self, body: &mut String) {
        let lines = |rows: [i64; 2], vector: i64| -> BTreeSet<i64> {
            let places = self.each_row().flat_map(|(_, a, b)| (0..self.vectors).map(move |v| a * rows[0] + b * rows[1] + v * vector));
            places.map(|at| at / LINE * LINE).collect()
        };
        if self.epilogue.is_none() && self.out[1] == 1 {
            for at in lines(self.out_rows, self.out[0]) {
                let _ = writeln!(body, "    BRING_TO_WRITE(c + {at});");
            }
        }
        for (n, place) in self.epilogue.iter().flat_map(|(_, places)| places).enumerate() {
            // A value for each vector, such as a bias, is near.
            if place.lane != 1 || place.rows == [0, 0] {
                continue;
            }
            let bring = if place.is_written { "BRING_TO_WRITE" } else { "BRING_NEAR" };
            for at in lines(place.rows, place.vector) {
                let _ = writeln!(body, "    {bring}(t{n} + {at});");
            }
        }
    }

    /// Loops over the depth from a level on, of the rows that count there.
    fn nest(&self, body: &mut String, level: usize, indent: &str, counts: &dyn Fn(i64) -> bool) {
        let Some(DepthLoop { count, strides: [w, s], clip }) = self.depth.get(level).cloned() else {
            self.step(body, indent, 0, [0, 0], counts);
            return;
        };
        let is_last = level + 1 == self.depth.len();
        let within = format!("{indent}    ");
        let again = format!("const real *const w_{level} = w, *const s_{level} = s;");
        if let Clip::Rows(inside) = clip {
            for k in 0..count {
                let counts = |row: i64| counts(row) && inside[row as usize][k as usize];
                if self.each_row().all(|(row, ..)| !counts(row)) {
                    continue;
                }
                if is_last {
                    self.step(body, indent, k, [k * w, k * s], &counts);
                    continue;
                }
                let _ = writeln!(body, "{indent}{{\n{within}{again}\n{within}w += {}, s += {};", k * w, k * s);
                self.nest(body, level + 1, &within, &counts);
                let _ = writeln!(body, "{within}w = w_{level}, s = s_{level};\n{indent}}}");
            }
            return;
        }
        let many = if clip == Clip::Counted { format!("n{level}") } else { count.to_string() };
        if !is_last || clip == Clip::Counted {
            let _ = writeln!(body, "{indent}for (int64_t d{level} = 0; d{level} < {many}; ++d{level}, w += {w}, s += {s}) {{");
            if is_last {
                self.step(body, &within, 0, [0, 0], counts);
                let _ = writeln!(body, "{indent}}}");
            } else {
                let _ = writeln!(body, "{within}{again}");
                if level == 0 && self.next.in_each_round {
                    self.bring_next_rows(body, &within);
                }
                self.nest(body, level + 1, &within, counts);
                let _ = writeln!(body, "{within}w = w_{level}, s = s_{level};\n{indent}}}");
            }
            return;
        }
        let rounds = if count <= STEPS { 0 } else { count / STEPS };
        if rounds > 0 {
            let (far_w, far_s) = (STEPS * w, STEPS * s);
            let _ = writeln!(body, "{indent}for (int64_t d{level} = 0; d{level} < {rounds}; ++d{level}, w += {far_w}, s += {far_s}) {{");
            for step in 0..STEPS {
                self.step(body, &within, step, [step * w, step * s], counts);
            }
            let _ = writeln!(body, "{indent}}}");
        }
        for step in 0..count - rounds * STEPS {
            self.step(body, indent, step, [step * w, step * s], counts);
        }
    }

    /// One step of the depth: its number in the round, its distance from where the factors are, and the rows that count.
    fn step(&self, body: &mut String, indent: &str, number: i64, [w, s]: [i64; 2], counts: &dyn Fn(i64) -> bool) {
        for n in 0..self.brings.filter(|b| number % b.every == 0).map_or(0, |b| b.vectors) {
            let _ = writeln!(body, "{indent}BRING_NEAR(w + ahead + {});", w + n * self.vector[0]);
        }
        for v in 0..self.vectors {
            let at = w + v * self.vector[0];
            let _ = match self.vector[1] {
                1 if self.whole[0] => writeln!(body, "{indent}TAKE(w{v}, w + {at});"),
                apart => writeln!(body, "{indent}w{v} = gathered(w + {at}, {apart}, lanes{});", self.before(v)),
            };
        }
        for (i, a, b) in self.each_row().filter(|(row, ..)| counts(*row)) {
            let at = s + a * self.row[0] + b * self.row[1];
            let one = |v: i64| match self.other {
                Some([vector, 1]) if self.whole[1] => format!("MULTIPLY_TAKEN(c{i}_{v}, s + {}, w{v});", at + v * vector),
                Some([vector, apart]) => {
                    format!("x = gathered(s + {}, {apart}, lanes{}); MULTIPLY(c{i}_{v}, x, w{v});", at + v * vector, self.before(v))
                }
                None if self.vectors == 1 => format!("MULTIPLY_ONE(c{i}_{v}, s + {at}, w{v});"),
                None => format!("MULTIPLY(c{i}_{v}, x, w{v});"),
            };
            let all: Vec<String> = (0..self.vectors).map(one).collect();
            let spread = if self.other.is_none() && self.vectors > 1 { format!("TAKE_ONE(x, s + {at}); ") } else { String::new() };
            let _ = writeln!(body, "{indent}{spread}{}", all.join(" "));
        }
    }

    /// C text that takes from a number of lanes those before a vector.
    fn before(&self, vector: i64) -> String {
        if self.last_is_partial && vector > 0 { format!(" - {}", vector * self.lanes) } else { String::new() }
    }

    fn width(&self) -> i64 {
        self.vectors * self.lanes
    }

    fn store_room(&self, body: &mut String) {
        let width = self.width();
        let _ = writeln!(body, "    real room[{}] __attribute__((aligned(64)));", self.rows.count() * width);
        for (i, ..) in self.each_row() {
            for v in 0..self.vectors {
                let _ = writeln!(body, "    *(lanes_t *)(room + {}) = c{i}_{v};", i * width + v * self.lanes);
            }
        }
    }

    /// C text of the lanes of vector `v` that are results.
    fn valid(&self) -> String {
        let before = if self.last_is_partial { format!(" - v * {}", self.lanes) } else { String::new() };
        format!("min_of({}, lanes{before})", self.lanes)
    }

    /// Stores sums one by one: lanes that are no neighbours in the result, or fewer of them.
    fn scatter(&self, body: &mut String) {
        let valid = self.valid();
        for [over_a, over_b, row] in self.rows.segments().iter().map(Segment::text) {
            let _ = writeln!(body, "    for (int64_t v = 0; v < {}; ++v) for (int64_t l = 0; l < {valid}; ++l)", self.vectors);
            let _ = writeln!(body, "        {over_b} {over_a} {{");
            let at = format!("a * {} + b * {} + v * {} + l * {}", self.out_rows[0], self.out_rows[1], self.out[0], self.out[1]);
            let from = format!("room[{row} * {} + v * {} + l]", self.width(), self.lanes);
            let _ = writeln!(body, "            real *const to = c + {at};\n            *to = add ? *to + {from} : {from};\n        }}");
        }
    }

    /// Computes what follows each sum: vector by vector where lanes are neighbours in what is written, else row by row.
    fn follow(&self, body: &mut String, text: &str, places: &[EpilogueStrides], whole: i64) {
        let segments: Vec<[String; 3]> = self.rows.segments().iter().map(Segment::text).collect();
        let inner = |row: &str| {
            let mut inner = format!("const real sum = room[{row} * {} + v * {} + l];\n", self.width(), self.lanes);
            for (n, place) in places.iter().enumerate() {
                let terms = [("a", place.rows[0]), ("b", place.rows[1]), ("v", place.vector), ("l", place.lane)];
                let terms: Vec<String> = terms.iter().filter(|(_, s)| *s != 0).map(|(i, s)| format!("{i} * {s}")).collect();
                inner += &format!("const int64_t o{n} = {};\n", if terms.is_empty() { "0".into() } else { terms.join(" + ") });
            }
            inner.lines().chain(text.lines()).map(|line| format!("            {line}\n")).collect::<String>()
        };
        let vectors = format!("for (int64_t v = 0; v < {}; ++v)", self.vectors);
        if places.iter().filter(|p| p.is_written).all(|p| p.lane == 1) {
            let _ = writeln!(body, "    if (lanes >= {whole}) {{");
            for [over_a, over_b, row] in &segments {
                let _ = writeln!(body, "        {over_a} {over_b} {vectors} {{\n        #pragma omp simd");
                let _ = writeln!(body, "        for (int64_t l = 0; l < {}; ++l) {{\n{}        }}\n        }}", self.lanes, inner(row));
            }
            let _ = writeln!(body, "        return;\n    }}");
            for [over_a, over_b, row] in &segments {
                let _ = writeln!(body, "    {over_a} {over_b} {vectors}\n        for (int64_t l = 0; l < {}; ++l) {{", self.valid());
                let _ = writeln!(body, "{}        }}", inner(row));
            }
        } else {
            for [over_a, over_b, row] in &segments {
                let _ = writeln!(body, "    {vectors} for (int64_t l = 0; l < {}; ++l)", self.valid());
                let _ = writeln!(
                    body,
                    "        {over_b} {{\n        #pragma omp simd\n        {over_a} {{\n{}        }}\n        }}",
                    inner(row)
                );
            }
        }
    }
}

//! Reads schedule templates.

use super::grammar::{AttributeKind, CTA_NUM, CTA_SIZE, DimAttribute, OperatorSchedule, ScheduleTemplate};
use std::str::FromStr;

/// Why a text is no schedule template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateSyntaxError {
    #[error("schedule template, column {column}: {found} stands where {expected} is expected; {advice}")]
    Unexpected { column: usize, found: String, expected: String, advice: String },
    #[error("schedule template, column {column}: `{name}` is given twice; leave one of the two out")]
    Twice { column: usize, name: String },
    #[error("a schedule template has at least one schedule, such as `y[GRID,WARP];`")]
    Empty,
}

/// Characters that end an identifier, besides white space. Names of containers may have dots.
const MARKS: &str = "[],;=";

struct Reader<'a> {
    text: &'a str,
    /// Bytes that are read.
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    /// Number of the character at a byte, from 1.
    fn column(&self, at: usize) -> usize {
        self.text.get(..at).unwrap_or_default().chars().count() + 1
    }

    fn next(&mut self) -> Option<char> {
        self.skip_space();
        self.rest().chars().next()
    }

    fn take(&mut self, mark: char) -> bool {
        let found = self.next() == Some(mark);
        self.at += if found { mark.len_utf8() } else { 0 };
        found
    }

    /// Characters up to a mark or white space.
    fn word(&mut self, also: &str) -> &'a str {
        self.skip_space();
        let ends = |c: char| c.is_whitespace() || MARKS.contains(c) || also.contains(c);
        let rest = self.rest();
        let word = &rest[..rest.find(ends).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn wrong(&mut self, expected: &str, advice: &str) -> TemplateSyntaxError {
        self.skip_space();
        let at = self.at;
        let found = match self.next() {
            None => "the end".to_string(),
            Some(mark) if MARKS.contains(mark) || mark == '-' => format!("`{mark}`"),
            Some(_) => format!("`{}`", self.word("-")),
        };
        self.at = at;
        TemplateSyntaxError::Unexpected { column: self.column(at), found, expected: expected.into(), advice: advice.into() }
    }

    /// A whole number above 0.
    fn number(&mut self, advice: &str) -> Result<u64, TemplateSyntaxError> {
        self.skip_space();
        let at = self.at;
        let digits = self.word("-_");
        match digits.parse::<u64>() {
            Ok(number) if number > 0 && digits.chars().all(|c| c.is_ascii_digit()) => Ok(number),
            _ => {
                self.at = at;
                Err(self.wrong("a whole number above 0", advice))
            }
        }
    }

    fn kind(&mut self) -> Result<AttributeKind, TemplateSyntaxError> {
        self.skip_space();
        let at = self.at;
        let word = self.word("-_");
        AttributeKind::ALL.into_iter().find(|kind| kind.word() == word).ok_or_else(|| {
            self.at = at;
            self.wrong("GRID, CTA, WARP or THREAD", "an attribute says who walks a dim, such as `GRID` or `GRID_128-WARP_2`")
        })
    }

    fn attribute(&mut self) -> Result<DimAttribute, TemplateSyntaxError> {
        let first = self.kind()?;
        if !self.rest().starts_with('_') {
            return match self.next() {
                Some('-') => Err(self.wrong("`_` and a number, or the next dim", "parts of one dim have their steps: `GRID_128-WARP_2`")),
                _ => Ok(DimAttribute::Whole(first)),
            };
        }
        let (mut levels, mut kind) = (Vec::new(), first);
        loop {
            self.at += 1;
            levels.push((kind, self.number("`GRID_128` are 128 steps")?));
            if !self.take('-') {
                return Ok(DimAttribute::Levels(levels));
            }
            kind = self.kind()?;
            if !self.rest().starts_with('_') {
                return Err(self.wrong("`_` and a number", "each part of a dim has its steps: `GRID_128-WARP_2`"));
            }
        }
    }

    fn schedule(&mut self, operator: &str) -> Result<OperatorSchedule, TemplateSyntaxError> {
        let mut attributes = vec![];
        // A value that nothing indexes has no dims.
        if self.next() != Some(']') {
            attributes.push(self.attribute()?);
            while self.take(',') {
                attributes.push(self.attribute()?);
            }
        }
        if !self.take(']') {
            return Err(self.wrong("`,`, `-` or `]`", "separate the attributes of dims by commas, and close the list by `]`"));
        }
        let at = self.at;
        let on_chip = self.word("") == "S";
        if !on_chip {
            self.at = at;
        }
        Ok(OperatorSchedule { operator: operator.to_string(), attributes, on_chip })
    }

    fn template(&mut self) -> Result<ScheduleTemplate, TemplateSyntaxError> {
        let mut found = ScheduleTemplate::default();
        while self.next().is_some() {
            self.skip_space();
            let at = self.at;
            let name = self.word("");
            if name.is_empty() {
                return Err(self.wrong("the name of an operator", "a schedule begins with the tensor that the operator writes"));
            }
            let twice = |reader: &Self| TemplateSyntaxError::Twice { column: reader.column(at), name: name.to_string() };
            if self.take('[') {
                let schedule = self.schedule(name)?;
                if found.schedules.iter().any(|s| s.operator == schedule.operator) {
                    return Err(twice(self));
                }
                found.schedules.push(schedule);
            } else {
                let held = match name {
                    CTA_NUM => &mut found.cta_num,
                    CTA_SIZE => &mut found.cta_size,
                    _ => return Err(self.wrong("`[`", "attributes of an operator's dims stand in brackets: `y[GRID,WARP];`")),
                };
                if !self.take('=') {
                    return Err(self.wrong("`=`", "launch parameters are numbers: `cta_num=64; cta_size=256;`"));
                }
                let number = self.number("launch parameters are numbers: `cta_num=64; cta_size=256;`")?;
                if held.replace(number).is_some() {
                    return Err(twice(self));
                }
            }
            // The last `;` may be absent.
            if !self.take(';') && self.next().is_some() {
                return Err(self.wrong("`;`, or `S;` for what is held on chip", "each schedule ends with `;`"));
            }
        }
        if found.schedules.is_empty() { Err(TemplateSyntaxError::Empty) } else { Ok(found) }
    }
}

impl FromStr for ScheduleTemplate {
    type Err = TemplateSyntaxError;

    fn from_str(text: &str) -> Result<Self, TemplateSyntaxError> {
        Reader { text, at: 0 }.template()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::option;
    use proptest::prelude::*;

    fn attribute() -> impl Strategy<Value = DimAttribute> {
        let kind = || prop::sample::select(AttributeKind::ALL.to_vec());
        let levels = vec((kind(), 1..=u64::MAX), 1..4).prop_map(DimAttribute::Levels);
        prop_oneof![kind().prop_map(DimAttribute::Whole), levels]
    }

    fn template() -> impl Strategy<Value = ScheduleTemplate> {
        let name = "[A-Za-z_][A-Za-z0-9_.]{0,12}";
        let schedules = btree_map(name, (vec(attribute(), 0..5), any::<bool>()), 1..6);
        (schedules, option::of(1..=u64::MAX), option::of(1..=u64::MAX)).prop_map(|(schedules, cta_num, cta_size)| {
            let of = |(operator, (attributes, on_chip))| OperatorSchedule { operator, attributes, on_chip };
            ScheduleTemplate { schedules: schedules.into_iter().map(of).collect(), cta_num, cta_size }
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_again(template in template()) {
            let text = template.to_string();
            prop_assert_eq!(text.parse::<ScheduleTemplate>(), Ok(template.clone()), "{}", text);
            // White space says nothing.
            let spaced: String = text.chars().map(|c| if MARKS.contains(c) { format!(" {c} ") } else { c.to_string() }).collect();
            prop_assert_eq!(spaced.parse::<ScheduleTemplate>(), Ok(template));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[A-Z_a-z0-9,;=\\-\\[\\] é]{0,40}") {
            // What is read is printed and read again alike.
            if let Ok(template) = text.parse::<ScheduleTemplate>() {
                prop_assert_eq!(template.to_string().parse(), Ok(template));
            }
        }
    }

    #[test]
    fn the_templates_of_the_paper_are_read() {
        let text = "reduce_1[GRID_128-WARP_2,WARP,WARP,CTA]S; dot_1[GRID,WARP,WARP]; cta_num=256; cta_size=256;";
        let template: ScheduleTemplate = text.parse().unwrap();
        let [reduce, dot] = template.schedules.as_slice() else { panic!("{template:?}") };
        assert_eq!(reduce.attributes[0], DimAttribute::Levels(vec![(AttributeKind::Grid, 128), (AttributeKind::Warp, 2)]));
        assert_eq!((reduce.attributes.len(), reduce.on_chip, dot.on_chip), (4, true, false));
        assert_eq!((template.cta_num, template.cta_size), (Some(256), Some(256)));
        assert_eq!(template.to_string(), text);
    }

    #[test]
    fn errors_say_where_and_what_is_expected() {
        let cases = [
            ("", 0, "at least one schedule"),
            ("cta_num=4;", 0, "at least one schedule"),
            ("y", 2, "the end stands where `[` is expected"),
            ("y[", 3, "the end stands where GRID, CTA, WARP or THREAD is expected"),
            ("y[GRID,", 8, "GRID, CTA, WARP or THREAD"),
            ("y[GRID,LANES]", 8, "`LANES` stands where"),
            ("y[GRID WARP]", 8, "separate the attributes of dims by commas"),
            ("y[GRID-WARP_2]", 7, "`-` stands where `_` and a number"),
            ("y[GRID_2-WARP]", 14, "`]` stands where `_` and a number"),
            ("y[GRID_0]", 8, "`0` stands where a whole number above 0"),
            ("y[GRID_99999999999999999999]", 8, "a whole number above 0"),
            ("y[GRID_]", 8, "a whole number above 0"),
            ("y[GRID] z[WARP];", 9, "`;`, or `S;`"),
            ("y[GRID]T;", 8, "`T` stands where"),
            ("y[GRID]; y[WARP];", 10, "`y` is given twice"),
            ("y[GRID]; cta_num=4; cta_num=4;", 21, "`cta_num` is given twice"),
            ("y[GRID]; cta_num 4;", 18, "`4` stands where `=`"),
            ("y[GRID]; cta_num=x;", 18, "a whole number above 0"),
            ("é[GRID]; [WARP];", 10, "the name of an operator"),
        ];
        for (text, column, part) in cases {
            let error = text.parse::<ScheduleTemplate>().unwrap_err();
            let told = error.to_string();
            assert!(told.contains(part), "{text}: {told}");
            match error {
                TemplateSyntaxError::Unexpected { column: at, .. } | TemplateSyntaxError::Twice { column: at, .. } => {
                    assert_eq!(at, column, "{text}: {told}");
                }
                TemplateSyntaxError::Empty => assert_eq!(column, 0, "{text}"),
            }
        }
    }

    #[test]
    fn levels_that_say_nothing_are_left_out() {
        let of = |text: &str, extent: u64| {
            let template: ScheduleTemplate = format!("y[{text}];").parse().unwrap();
            template.schedules[0].attributes[0].canonical(extent).to_string()
        };
        assert_eq!(of("GRID_8", 8), "GRID");
        assert_eq!(of("GRID_1-WARP_8", 8), "WARP");
        assert_eq!(of("GRID_2-WARP_4-THREAD_1", 8), "GRID_2-WARP_4");
        // A number that is not all of the dim is part of another meaning.
        assert_eq!(of("GRID_4", 8), "GRID_4");
        assert_eq!(of("GRID_1-WARP_1", 1), "THREAD");
        assert_eq!(of("WARP", 1), "THREAD");
    }
}

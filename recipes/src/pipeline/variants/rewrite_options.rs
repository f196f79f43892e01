//! How the programs of a recipe are made: whether every patch is checked, and which patches are left out.

use super::folder_name::folder_name;
use super::planning::Planning;
use super::table::VariantId;
use std::path::{Path, PathBuf};
use std::time::Instant;
use transforms::{Barred, Pass};

/// How programs are made.
#[derive(Clone, Default)]
pub struct RewriteOptions {
    /// Whether a shrunken program is interpreted before and after every patch; a wrong patch is saved under `target/memlet`.
    pub verify_each: bool,
    /// Patches that are left out, because programs with them compute other results.
    pub barred: Barred,
    /// When no further way of stacking is begun; one that has begun is completed.
    pub until: Option<Instant>,
    /// When the time for measuring is up: of programs that are begun later none would be measured, so only the first one is made.
    pub ends: Option<Instant>,
    /// The variants that are made besides the unfused program; all if it is empty.
    pub only: Vec<VariantId>,
    /// What plans of fusion are made by.
    pub planning: Planning,
    /// A pass that runs after fusion: for tests that plant faults.
    pub planted: Option<&'static (dyn Pass + Sync)>,
}

impl std::fmt::Debug for RewriteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let planted = self.planted.map(Pass::name);
        f.debug_struct("RewriteOptions")
            .field("verify_each", &self.verify_each)
            .field("barred", &self.barred)
            .field("planted", &planted)
            .finish()
    }
}

impl From<bool> for RewriteOptions {
    fn from(verify_each: bool) -> Self {
        RewriteOptions { verify_each, ..RewriteOptions::default() }
    }
}

impl From<&RewriteOptions> for RewriteOptions {
    fn from(options: &RewriteOptions) -> Self {
        options.clone()
    }
}

impl RewriteOptions {
    /// Without the patches of these summaries.
    pub fn without<'a>(summaries: impl IntoIterator<Item = &'a String>) -> Self {
        let mut options = RewriteOptions::default();
        for summary in summaries {
            options.barred.bar(summary);
        }
        options
    }

    /// Whether there is time for another program.
    pub(in crate::pipeline) fn goes_on(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    /// Whether there is time for measuring.
    pub(in crate::pipeline) fn has_time(&self) -> bool {
        self.ends.is_none_or(|ends| Instant::now() < ends)
    }

    /// The folder for wrong patches of a program, if every patch is checked.
    pub(in crate::pipeline) fn folder(&self, program: &str) -> Option<PathBuf> {
        self.verify_each.then(|| Path::new("target").join("memlet").join(folder_name(program)))
    }
}

//! `--device`: a device of this machine, or the file that describes an accelerator.

use crate::pipeline::run::target::Target;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;

/// A device of this machine; with a description, plans are made for the accelerator that it describes.
#[derive(Clone, Debug, Default)]
pub struct DeviceArgument {
    target: Target,
    pub description: Option<PathBuf>,
}

impl Deref for DeviceArgument {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.target
    }
}

impl FromStr for DeviceArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if [".yaml", ".yml"].iter().any(|end| text.ends_with(end)) {
            return Ok(DeviceArgument { target: Target::default(), description: Some(PathBuf::from(text)) });
        }
        Ok(DeviceArgument { target: text.parse()?, description: None })
    }
}

impl fmt::Display for DeviceArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.description {
            Some(path) => write!(f, "{}", path.display()),
            None => self.target.fmt(f),
        }
    }
}

//! Kernels of a plan beside those of the cores: all equal, and a mistake shows in the kernel that makes it.

// Each file of tests uses a part of it.
#[allow(dead_code)]
mod device_support;

use device_support::{Fake, attention};
use kernels::Toolchain;
use kernels::device::cpu::{Cores, Pool};
use recipes::pipeline::beside::beside;
use recipes::pipeline::tensors::drawn;
use sdfg::interpret::Run;

type Failure = Box<dyn std::error::Error>;

#[test]
fn a_mistake_shows_in_the_kernel_that_makes_it() -> Result<(), Failure> {
    let mut fake = Fake::new(None);
    let (operators, candidate) = attention(&fake, 1)?;
    let system = Toolchain::system()?;
    let cores = Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/devices").into(), ..system } };
    let (given, pool, run) = (drawn(&operators, 1)?, Pool::new(1)?, Run { seed: 4, step: 2, dropout: true });
    let compared = beside(&candidate, &given, &run, &pool, (&fake, &cores))?;
    let kernels: Vec<String> = candidate.program.units().iter().map(|(_, _, unit)| unit.name().to_string()).collect();
    assert!(kernels.iter().all(|name| compared.iter().any(|c| c.kernel == *name)), "every kernel is compared");
    assert!(compared.iter().all(|c| c.ratio <= 1.0), "{compared:?}");
    assert!(compared.iter().any(|c| c.ratio > 0.0), "two ways to compute differ somewhere");
    // In the first, in one in the middle, and in the last.
    for name in [&kernels[0], &kernels[kernels.len() / 2], &kernels[kernels.len() - 1]] {
        fake.spoiled = Some(name.clone());
        let wrong: Vec<_> = beside(&candidate, &given, &run, &pool, (&fake, &cores))?.into_iter().filter(|c| c.ratio > 1.0).collect();
        assert!(wrong.len() == 1 && wrong[0].kernel == *name, "{name}: {wrong:?}");
    }
    Ok(())
}

//! The crate as its users see it, on invented programs and an invented device.

mod breaking;
mod brute;
mod certificate;
mod cover;
mod encoder;
mod exact;
mod folders;
mod invented_device;
mod packing;
mod scale;
mod sites;
mod stack;
mod store;
mod sweep;
mod synthetic;

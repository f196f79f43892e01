pub mod differentiate;

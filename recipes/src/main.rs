fn main() -> std::process::ExitCode {
    recipes::cli::main()
}

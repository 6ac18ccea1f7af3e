//! The program: reads the command line, runs the command, and says with its code how it went.

use std::process::ExitCode;

use tidegate::cli;

/// The proxy's buffers of a few kilobytes come and go with each request: this takes half the time
/// that the system's allocator does.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // One provider of cryptography for all TLS in the process. Only the first call takes effect.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            // Clap returns help and version as errors, too. A closed pipe is no error.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match cli::run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.show();
            ExitCode::from(failure.code())
        }
    }
}

pub fn run(
    args: &crate::args::DoctorArgs,
    colour: crate::style::ColorChoice,
) -> Result<crate::exit::Exit, crate::exit::Failure> {
    let _ = (args, colour);
    Ok(crate::exit::Exit::SUCCESS)
}

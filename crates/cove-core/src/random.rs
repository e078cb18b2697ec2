//! Random numbers from the kernel, for handles, tokens and names that nothing outside this process can guess.

/// 128 bits from `getrandom`.
pub fn random_bits() -> u128 {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        // Fails only on kernels without this system call, which are far older than any that Cove supports.
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .unwrap_or_else(|error| panic!("could not get random bytes: {error}"));
    }
    u128::from_ne_bytes(bytes)
}

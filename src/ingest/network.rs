//! File systems on which the kernel reports only what this machine itself did: others may write there, too, and are
//! not heard. Asked by the type number of `statfs`.

use std::path::Path;

/// Names and type numbers (`linux/magic.h`, and the headers of those that are built outside the kernel). FUSE is any
/// of sshfs, virtiofs, rclone, GlusterFS or a share of a virtual machine, and sometimes a local one: looking there
/// more often than needed costs little. Overlays, btrfs and tmpfs are local and not listed.
const NETWORK: &[(&str, u32)] = &[
    ("nfs", 0x6969),
    ("cifs", 0xff53_4d42),
    ("smb2", 0xfe53_4d42),
    ("smbfs", 0x517b),
    ("9p", 0x0102_1997),
    ("fuse", 0x6573_5546),
    ("vboxsf", 0x786f_4256),
    ("vmhgfs", 0xbacb_acbc),
    ("prl_fs", 0x7c7c_6673),
    ("ceph", 0x00c3_6400),
    ("afs", 0x5346_414f),
    ("kafs", 0x6b41_4653),
    ("coda", 0x7375_7245),
    ("ncpfs", 0x564c),
    ("ocfs2", 0x7461_636f),
    ("gfs2", 0x0116_1970),
    ("lustre", 0x0bd0_0bd0),
    ("gpfs", 0x4750_4653),
    ("orangefs", 0x2003_0528),
];

/// Whether a folder lies on one of them. One that cannot be asked is taken for local, as most are.
pub(super) fn is_network(folder: &Path) -> bool {
    // The numbers have 32 bits; the field's width and sign differ between machines.
    rustix::fs::statfs(folder).is_ok_and(|fs| kind(fs.f_type as u32).is_some())
}

fn kind(number: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_told_from_what_is_local() {
        assert_eq!(kind(0x6969), Some("nfs"));
        assert_eq!(kind(0xfe53_4d42), Some("smb2"));
        assert_eq!(kind(0x0102_1997), Some("9p"));
        // As a machine with a signed field of 32 bits shows it.
        assert_eq!(kind(-11_317_950_i32 as u32), Some("cifs"));
        // ext4, btrfs, xfs, tmpfs (one bit away from 9p), overlay, zfs, proc.
        for local in [0xef53, 0x9123_683e, 0x5846_5342, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1, 0x9fa0] {
            assert_eq!(kind(local), None, "{local:x}");
        }
        let mut numbers: Vec<_> = NETWORK.iter().map(|(_, number)| number).collect();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), NETWORK.len());
        assert!(!is_network(Path::new("/proc")));
        assert!(!is_network(Path::new("/nowhere")));
    }
}

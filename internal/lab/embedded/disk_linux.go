package embedded

import (
	"errors"
	"fmt"
	"syscall"
)

// mountDisk mounts an empty file system in memory, which holds so many bytes.
func mountDisk(dir string, bytes int64) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		return fmt.Errorf("a disk in memory on %s cannot be mounted, which takes root: %w", dir, err)
	}
	return nil
}

// unmountDisk takes away what is mounted there, if something is. Files that are
// still open keep it until they are closed.
func unmountDisk(dir string) { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }

// hasRoom reports whether a directory is on a file system in memory with so many
// bytes free.
func hasRoom(dir string, bytes uint64) bool {
	const tmpfs = 0x01021994 // TMPFS_MAGIC
	var disk syscall.Statfs_t
	return syscall.Statfs(dir, &disk) == nil && disk.Type == tmpfs && disk.Bavail*uint64(disk.Bsize) >= bytes
}

// fillDisk makes the disk as small as what is on it. Who writes to it meanwhile
// may need another try.
func fillDisk(dir string) error {
	for {
		var disk syscall.Statfs_t
		if err := syscall.Statfs(dir, &disk); err != nil {
			return fmt.Errorf("embedded: the disk on %s: %w", dir, err)
		}
		used := int64(disk.Blocks-disk.Bfree) * disk.Bsize
		if err := resizeDisk(dir, used); !errors.Is(err, syscall.EINVAL) {
			return err
		}
	}
}

func freeDisk(dir string, bytes int64) error { return resizeDisk(dir, bytes) }

func resizeDisk(dir string, bytes int64) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", bytes)); err != nil {
		return fmt.Errorf("embedded: the disk on %s cannot be made one of %d bytes: %w", dir, bytes, err)
	}
	return nil
}

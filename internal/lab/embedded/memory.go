package embedded

import "os"

const (
	memory = "/dev/shm" // where Linux has a file system in memory

	// A server of the tests needs some hundred megabytes, a simulation with
	// standbys and copies up to two gigabytes.
	memoryNeeded = 4 << 30
)

// root returns the directory for the server's home: TMPDIR if it is set, else a
// file system in memory with room, else the usual place of temporary files.
//
// A test makes and drops databases of 300 files each. ext4 does not reuse the
// inode of a file for five seconds after its deletion, and checks each such
// inode again for every file that it makes: on a disk, CREATE DATABASE takes
// more than five times as long as in memory.
func (c Config) root() string {
	if os.Getenv("TMPDIR") == "" && !c.OnDisk && hasRoom(memory, memoryNeeded) {
		return memory
	}
	return os.TempDir()
}

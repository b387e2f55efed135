// Package subprocess starts processes that end with this one, waits for them, and
// keeps the end of what they print.
//
// It knows nothing of workers, servers or proxies, nor of what its processes
// are for.
package subprocess

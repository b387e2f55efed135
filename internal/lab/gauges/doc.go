// Command gauges measures the structure of the library, and keeps it from getting worse.
//
//	go run ./internal/lab/gauges          prints each gauge, its ceiling and its goal
//	go run ./internal/lab/gauges -check   fails if a gauge is above its ceiling; the lint runs this
//	go run ./internal/lab/gauges -lower   lowers the ceilings to what is measured
//	go run ./internal/lab/gauges -folders prints references upwards, and the largest type and function, by folder
//
// The ceilings stand in ceilings.txt. They may only fall: to raise one, edit the file and say why
// in the commit.
//
// # What is measured
//
// The library is what users import and what that needs: all packages of this module but for those
// of notLibrary. Tests do not count.
//
// References upwards: file A refers to file B of its package if A uses a name that B declares. The
// files of a package are ordered so that the fewest references point back, and these are counted.
// The best order is NP-hard to find (feedback arc set; Eades, Lin, Smyth 1993). A local search from
// drawn orders finds a close one.
//
// Calls upwards on an event's way: the static calls that the entry of the event loop's package can
// reach, if the called function is in a file above its caller's. The files have an order of their
// own.
package main

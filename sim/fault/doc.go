// Package fault has what the tables of faults of packages sim and chaos share:
// the part of a row that says what a fault is called, does, is counted as and
// leads to, the flag that turns faults on, and the deck that deals them.
//
// It knows neither workers nor servers. How a fault is injected stands in the
// same row, in the package that does it.
package fault

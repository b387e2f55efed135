package pgtest

// LeakPatience is how long Main waits for goroutines to end.
var LeakPatience = &leakPatience

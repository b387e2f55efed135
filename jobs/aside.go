package jobs

// aside calls the user's code in a goroutine of its own, and waits for it. It
// reports whether that returned: a panic, and runtime.Goexit, end only that
// goroutine.
func aside(f func()) (returned bool) {
	ended := make(chan bool, 1)
	go func() {
		ok := false
		defer func() {
			_ = recover()
			ended <- ok
		}()
		f()
		ok = true
	}()
	return <-ended
}

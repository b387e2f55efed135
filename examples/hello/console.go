package main

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/pgfrontier/worker/ops/console"
)

// listen takes port 8080 of this machine, or any that is free.
func listen() (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	return l, nil
}

// serve serves the console until ctx ends. Everybody who reaches it may do
// everything: put yours behind a login.
func serve(ctx context.Context, l net.Listener, db *sql.DB) error {
	c := console.New(db, console.Options{Access: func(*http.Request) console.Grant {
		return console.Grant{Operator: "you", Level: console.Operate}
	}})
	server := &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		c.Close()
		return err
	case <-ctx.Done():
	}
	c.Close() // the live updates, for which Shutdown would wait
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return server.Shutdown(ctx)
}

// hasDesktop reports whether a browser is likely to open.
func hasDesktop() bool {
	return runtime.GOOS == "darwin" || runtime.GOOS == "windows" || os.Getenv("DISPLAY")+os.Getenv("WAYLAND_DISPLAY") != ""
}

// openBrowser asks the desktop to show a page.
func openBrowser(ctx context.Context, url string) {
	command := []string{"xdg-open"}
	switch runtime.GOOS {
	case "darwin":
		command = []string{"open"}
	case "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	if err := exec.CommandContext(ctx, command[0], append(command[1:], url)...).Run(); err != nil {
		fmt.Printf("No browser opens (%v): open the page yourself.\n\n", err)
	}
}

package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/ops/console"
)

const (
	consoleConns  = 10
	headerLimit   = 10 * time.Second // for a request's header
	requestLimit  = 30 * time.Second // for all of it; the console's live updates have their own
	idleLimit     = 2 * time.Minute  // for a connection that is kept
	shutdownLimit = 20 * time.Second // a change may be under way, which the console bounds
)

func (a *app) consoleVerb() *cobra.Command {
	var listen, environment string
	var anywhere bool
	c := &cobra.Command{
		Use: "console", Short: "serve the web console on this machine", Args: cobra.NoArgs,
		Long: `Serves the web console until Ctrl-C, and prints its address. A secret is in the
address, another one each time: who has it may see all, payloads included, and
change all, in the name of --operator. Who does not have it sees nothing, though
he be on the same machine.

It listens on a loopback address. From another machine, ssh -L 8080:127.0.0.1:8080
leads to it. For a team, put package console behind the login of an application.`,
		Example: "  pgfrontier console\n  pgfrontier console --listen 127.0.0.1:0 --environment staging",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			return a.serve(ctx, listen, anywhere, environment)
		}),
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&listen, "listen", "127.0.0.1:8080", "where, as host:port; port 0 is a free one")
	f.BoolVar(&anywhere, "anywhere", false, "also on an address that other machines reach, without TLS")
	f.StringVar(&environment, "environment", "", "stands on every page, after the database's name")
	f.StringVar(&a.change.operator, "operator", "", "who makes the changes (or PGFRONTIER_OPERATOR; default user@host)")
	return c
}

// serve serves the console until ctx ends, which is no error.
func (a *app) serve(ctx context.Context, at string, anywhere bool, environment string) error {
	names, err := a.names()
	if err != nil {
		return err
	}
	address, err := addressOf(at, anywhere)
	if err != nil {
		return err
	}
	db, err := a.open(ctx)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(consoleConns)
	listener, err := net.ListenTCP("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return usage("%s is in use: --listen 127.0.0.1:0 takes a free port", address)
	case err != nil:
		return usage("cannot listen: %w", err)
	}
	grant := console.Grant{Operator: a.who(), Level: console.Operate}
	pages := console.New(db, console.Options{Environment: environment, Names: names, Access: func(*http.Request) console.Grant { return grant }})
	defer pages.Close()
	secret := rand.Text()
	server := &http.Server{
		Handler: behind(secret, pages), ReadHeaderTimeout: headerLimit, ReadTimeout: requestLimit, IdleTimeout: idleLimit,
		ErrorLog: log.New(talker{a}, "pgfrontier: ", 0),
	}
	server.RegisterOnShutdown(pages.Close) // or the live updates would keep it
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()

	link := "http://" + reachable(listener.Addr().(*net.TCPAddr)) + "/" + secret + "/"
	err = a.print(object{"url": link, "operator": grant.Operator}, func() string { return link + "\n" })
	if err == nil {
		a.say("Who has this address changes things as %s: keep it. Ctrl-C ends the console.", grant.Operator)
		select {
		case <-ctx.Done():
		case err = <-ended:
			return usage("the console has ended: %w", err)
		}
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
	defer cancel()
	if server.Shutdown(limited) != nil {
		_ = server.Close()
	}
	<-ended
	return err
}

// addressOf is where to listen.
func addressOf(at string, anywhere bool) (*net.TCPAddr, error) {
	address, err := net.ResolveTCPAddr("tcp", at)
	switch {
	case err != nil || !strings.Contains(at, ":"):
		return nil, usage("--listen %q: it is host:port, such as 127.0.0.1:8080", at)
	case !anywhere && !address.IP.IsLoopback():
		return nil, usage("--listen %q: other machines reach that, and the console has no TLS: listen on 127.0.0.1 behind a proxy or ssh -L, or insist with --anywhere", at)
	}
	return address, nil
}

// reachable is an address for a browser.
func reachable(at *net.TCPAddr) string {
	if !at.IP.IsUnspecified() {
		return at.String()
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return net.JoinHostPort(host, strconv.Itoa(at.Port))
}

// behind serves a handler below a secret. The secret is a part of the path, since the cookies
// of an address go to all of its ports, whatever program listens there.
func behind(secret string, h http.Handler) http.Handler {
	h = http.StripPrefix("/"+secret, h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first, _, below := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case subtle.ConstantTimeCompare([]byte(first), []byte(secret)) != 1:
			http.Error(w, "The address of this console has a secret: take it from where pgfrontier console has printed it.", http.StatusForbidden)
		case !below: // the links of the pages are relative
			http.Redirect(w, r, "/"+secret+"/", http.StatusTemporaryRedirect)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// talker writes a log to people.
type talker struct{ *app }

func (t talker) Write(text []byte) (int, error) {
	t.say("%s", errtext.Line(string(text)))
	return len(text), nil
}

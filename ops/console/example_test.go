package console_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/ops/console"
)

// The console is mounted behind the application's login. Who is on call may change things,
// others read.
func ExampleNew() {
	t, drop := pgtest.Example()
	defer drop()
	db := pgtest.New(t).DB

	c := console.New(db, console.Options{Access: func(r *http.Request) console.Grant {
		name, _, ok := r.BasicAuth() // or the application's session
		switch {
		case !ok:
			return console.Grant{}
		case name == "ann":
			return console.Grant{Operator: name, Level: console.Operate}
		}
		return console.Grant{Operator: name, Level: console.Read}
	}})
	defer c.Close()
	mux := http.NewServeMux()
	mux.Handle("/pgfrontier/", http.StripPrefix("/pgfrontier", c))
	server := httptest.NewServer(mux)
	defer server.Close()

	for _, name := range []string{"", "ann"} {
		r, err := http.NewRequest(http.MethodGet, server.URL+"/pgfrontier/", nil)
		if err != nil {
			log.Panic(err)
		}
		if name != "" {
			r.SetBasicAuth(name, "her password")
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			log.Panic(err)
		}
		_ = answer.Body.Close()
		fmt.Println(answer.Status)
	}
	// Output:
	// 403 Forbidden
	// 200 OK
}

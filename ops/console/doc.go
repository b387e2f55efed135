// Package console is a web console for operators: how the log, its consumers, workers and
// jobs stand, and what package ops does to them.
//
//	c := console.New(db, console.Options{Access: access})
//	defer c.Close()
//	mux.Handle("/pgfrontier/", http.StripPrefix("/pgfrontier", c))
//
// Put it behind the application's login, and let [Options.Access] say who comes and what
// they may do. Without Access everybody who reaches it may read, nobody sees payloads, and nobody
// changes anything.
//
// Its pages need no JavaScript and nothing from elsewhere. All links are relative, so it
// works below any path. Each page is JSON if the request's Accept names application/json.
//
// A change is previewed first, with what it would record, and asks for a reason. The
// form carries what it was drawn from. Where the consumer has moved meanwhile, the answer is
// 409 and nothing is changed.
package console

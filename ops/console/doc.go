// Package console is a web console for operators. It shows the log, its consumers, workers and
// jobs, and makes the changes of package ops.
//
//	c := console.New(db, console.Options{Access: access})
//	defer c.Close()
//	mux.Handle("/pgfrontier/", http.StripPrefix("/pgfrontier", c))
//
// Put the console behind the application's login. [Options.Access] names the operator of a
// request, and what the operator may see and change. Without Access, every sender may read, and
// none may see payloads or make changes.
//
// All links are relative, so the console works below any path. docs/operations.md describes the pages,
// their JSON, and changes.
package console

// Package pgmajors is only a test. The script tools/majors puts the programs
// of one PostgreSQL after the other in front, and the test tells whether they
// are what the servers of the tests are started from: programs that cannot be
// used, the next ones on the machine would silently replace.
package pgmajors

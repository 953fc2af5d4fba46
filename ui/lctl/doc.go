// Package lctl is the administrator's tool: it shows and sets the parameters and statistics of the strake processes of
// this host, under the words, flags and output forms of Lustre's lctl.
//
// Words are those of package param, whose sockets it asks. The union of all answers is shown, by name; the same name with
// the same value once, with different values of different processes each of them, by value.
//
// Output: "name=value", or for a value of several lines "name=" and then the value as it is. Control characters that come
// from elsewhere are shown as '?'.
//
// Exit status: 0; of the first error, with the numbers of errno(3), as Lustre's: 2 no such parameter, 6 no process to
// ask, 13 read-only or no permission, 22 bad value, pattern or command line; 1 for what has no number.
package lctl

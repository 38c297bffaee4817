// Command lines checks how long the lines of the repository's Go files are: comments have at most
// 100 columns and code 110, and a tab counts as 4. `make lint` runs it in the root of the
// repository.
//
// A line may be longer
//
//   - as a row of a table: an element of a composite literal of which each element has a line of
//     its own, because rows are compared column by column;
//   - within a raw string of several lines, whose bytes are data;
//   - as preformatted text of a comment, which a tab indents: tables and commands;
//   - as a comment that begins with a long word, such as an address;
//   - in a file that a program has written ("Code generated").
package main

import (
	"fmt"
	"os"
)

func main() {
	complaints, err := check(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "lines:", err)
		os.Exit(1)
	}
	for _, c := range complaints {
		fmt.Println(c)
	}
	if len(complaints) > 0 {
		os.Exit(1)
	}
}

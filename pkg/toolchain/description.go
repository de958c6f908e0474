package toolchain

// Description describes how to find a toolchain, on this machine and in an image. It is data of the language's package.
type Description struct {
	Name     string
	Programs []string // names of the program, the best first
	// First and Places are patterns of paths to search before and after the directories of PATH. ~ is the home directory, $X a variable;
	// a place whose variable is unset is skipped. An image has no home and no variables.
	First, Places []string
	// Variables are names of variables that select the toolchain, in addition to CommonVariables. Queried programs see them too.
	Variables []string
	// Settings are further variables of queried programs (NAME=value): they keep programs from downloading and from reading a project's files.
	Settings []string
	Packages Packages
	// Detail distinguishes descriptions of one name in the store.
	Detail string
	// Query runs a candidate to learn what it is, and returns its toolchain. After an error the search goes on; see Search.Incomplete.
	Query func(*Search, Program) (*Toolchain, error)
}

// Packages are the names of a toolchain in package managers. Dnf is also for yum and zypper.
type Packages struct{ Apt, Dnf, Apk, Pacman, Brew string }

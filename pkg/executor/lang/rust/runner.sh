# Starts a program for cargo. A test program writes its report as JSON, which the test library of stable versions of Rust does with this
# variable only; other programs are examples of the documentation.
case $1 in
*/deps/*)
	printf '{"type":"binary","path":"%s","package":"%s"}\n' "$1" "$CARGO_PKG_NAME"
	RUSTC_BOOTSTRAP=1 exec "$@" -Z unstable-options --format=json --report-time
	;;
esac
exec "$@"

#!/bin/sh
# The control plane of the fleet in miniature: one organization is a folder beside this script, with
#
#   cell       the cell that the routing names
#   fence      while it is there nobody writes for the organization; it holds the move's token
#   revoked/   a file for each token that may not fence or flip any more
#
# The one argument is fence, unfence, flip or where; the order is a JSON object on standard input.
# Exit code 0: done; 3: refused for good; anything else: try again.
set -eu

order=$(cat)
field() {
  printf '%s' "$order" | sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p"
}
from=$(field from)
to=$(field to)
token=$(field move_token)
# A token is a move and an attempt, with a slash between.
revoked=revoked/$(printf '%s' "$token" | tr / _)

cd "$(dirname "$0")/org-$(field organization)" || exit 3
exec 9>lock
flock 9

# A reader sees the old content or the new one.
put() {
  printf '%s' "$2" >"$1.new"
  mv "$1.new" "$1"
}
fence() { cat fence 2>/dev/null || true; }
cell() { cat cell; }

case $1 in
  where)
    cell
    ;;
  fence)
    [ ! -e "$revoked" ] && [ "$(cell)" = "$from" ] || exit 3
    held=$(fence)
    [ -z "$held" ] || [ "$held" = "$token" ] || exit 3
    put fence "$token"
    ;;
  unfence)
    : >"$revoked"
    # Another move's fence is not ours to lift.
    [ "$(fence)" != "$token" ] || rm fence
    ;;
  flip)
    [ "$(cell)" != "$to" ] || exit 0
    [ ! -e "$revoked" ] && [ "$(cell)" = "$from" ] && [ "$(fence)" = "$token" ] || exit 3
    put cell "$to"
    # Last, so that a reader who finds no fence finds the new cell.
    rm fence
    ;;
  *)
    exit 64
    ;;
esac

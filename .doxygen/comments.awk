# Doxygen's filter for a header of keel. It makes a comment for Doxygen out of what a header says already, so that nothing is written twice:
#   the text at the head of a header             the page of that file
#   an entry of it, `//   every<D, ..>   text`   the policy of that name, which must be in the list at its header's head to be documented
#   `///<` of a slot's setting                   the option that sets it
#   `.symptom = "text"`                          the alarm
#   the text before that list                    the slot's namespace
#   names that mean the same everywhere          as `configured` of a policy and `visit` of a state
# A comment that stands before a name wins. The inline namespace of the mode goes. Doxygen says nothing of a concept, and of a type without
# members, that has no comment; this says it on standard error, in Doxygen's words.

# Bases in the namespace detail, whose members are calls of a public class.
BEGIN {
  split("adam_engine one_of step_engine typed_step", names, " ")
  for (i in names) is_public_base[names[i]] = 1
}

{ lines[++count] = $0 }

# Doxygen reads < as the beginning of a tag, and a point before a blank as the end of a summary.
function plain(text) {
  gsub(/</, "\\<", text)
  gsub(/>/, "\\>", text)
  gsub(/ al\. /, " al.\\ ", text)
  return text
}

# True where line i begins one of these bases: with its comment, its template or its class.
function begins_base(i, name) {
  if (lines[i] !~ /^(\/\/\/|template <|class )/ || lines[i - 1] ~ /^(\/\/\/|template <)/) return 0
  while (lines[i] ~ /^(\/\/\/|template <)/) ++i
  name = lines[i]
  return name !~ /;$/ && sub(/^class /, "", name) && sub(/[^a-z_].*/, "", name) && name in is_public_base
}

# The list of a head's entries, of which each may have several names: "cpu, cuda         text".
function read_entry(line, names, name, parts, n, i, at) {
  sub(/^\/\/   /, "", line)
  at = match(line, /  +/)
  if (at == 0) {
    if (!match(line, /^[a-z_0-9]+<[^ ]*> /)) return 0
    at = RLENGTH
    RLENGTH = 1
  }
  names = substr(line, 1, at - 1)
  while (gsub(/<[^<>]*>/, "", names)) {}
  if (names !~ /^[a-z_0-9]+(, [a-z_0-9]+)*$/) return 0
  n = split(names, parts, ", ")
  current = ""
  for (i = 1; i <= n; ++i) {
    name = parts[i]
    current = current " " name
    entry[name] = entry[name] (entry[name] == "" ? "" : " ") substr(line, at + RLENGTH)
  }
  return 1
}
function continue_entry(text, parts, n, i) {
  n = split(current, parts, " ")
  for (i = 1; i <= n; ++i) entry[parts[i]] = entry[parts[i]] " " text
}

# What stands for the comment of a declaration in line i; empty if Doxygen is to look for one.
function comment_of(i, line, name, j, text) {
  line = lines[i]
  if (has_entries && line == "namespace keel::" slot " {") return "The slot " plain(opening)
  if (line ~ /^ *(struct|using) [a-z_0-9]+/ && line !~ /;$/ || line ~ /^ *using [a-z_0-9]+ =/ || line ~ /^ *struct [a-z_0-9]+ .*[{]};?$/) {
    name = line
    sub(/^ *(struct|using) /, "", name)
    sub(/[^a-z_0-9].*/, "", name)
    if (is_policy_header && name in entry) return plain(entry[name])
    if (match(line, /sets<&[a-z_]*settings::[a-z_0-9]+/)) {
      text = substr(line, RSTART, RLENGTH)
      sub(/.*::/, "", text)
      if (text in setting) return "`settings::" text "`: " plain(setting[text]) "."
    }
    for (j = i + 1; j < i + 12 && j <= count && lines[j] !~ /^(struct|};)/; ++j) {
      if (lines[j] ~ /\.symptom =/) {
        text = lines[j] lines[j + 1]
        if (match(text, /\.symptom = *"[^"]*"/)) {
          text = substr(text, RSTART, RLENGTH - 1)
          sub(/.*"/, "", text)
          return "An alarm: " plain(text) "."
        }
      }
    }
    if (name ~ /settings$/ && is_policy_header) return "The settings of this slot in a recipe's configuration."
  }
  if (is_policy_header && (line ~ /^  ([a-z_]+::)?[a-z_]*kind kind = / || line ~ /^  using kind = /)) return "Which policy fills the slot."
  if (is_policy_header && line ~ /^enum class [a-z_]*kind /) return "Which policy fills the slot."
  if (is_policy_header && line ~ /^constexpr settings at\(/) return "The settings of an interval of this unit."
  if (line ~ /^  static constexpr bool has_unit = /) return "False if its interval has no unit that the policy takes (rule D26)."
  if (line ~ /^  static constexpr health::action does = /) return "What the run does."
  if (is_policy_header && line ~ /^concept option =/) return "An option of this slot's policies."
  if (is_policy_header && line ~ /^concept fact =/) return "A fact that this slot takes."
  if (line ~ /^ *static constexpr [a-z_]*settings configured/) return "What the policy sets of its slot."
  if (line ~ /^ *static constexpr alarm configured/) return "Its conditions, causes and fixes."
  if (line ~ /^ *static constexpr rung_settings rung/) return "What the rung does."
  if (line ~ /^ *static constexpr void apply\(settings& /) return "Writes what the option sets."
  if (line ~ /^ *(constexpr )?void visit\([A-Za-z]+& archive\)/) return "Lists the fields that checkpoints hold."
  if (line ~ /\) (const )?override( [{].*)?;?$/ || line ~ /\) (const )?override [{]/) return "As the base class says."
  # A call that does not compile, and says so with a rule.
  for (j = i; j < i + 4 && j <= count && lines[j] !~ /^ *}/; ++j) {
    if (line ~ /\(/ && match(lines[j], /reject_call(_of)?<rule::[A-Z][0-9]+/)) {
      text = substr(lines[j], RSTART, RLENGTH)
      sub(/.*:/, "", text)
      return "Rejected by the compiler (" text ")."
    }
  }
  if (match(line, /result::[a-z_]+ const\* [a-z_]+\(\) const& /)) return "The case of that name, or null."
  if (match(line, /held_case<result::[a-z_]+> [a-z_]+\(\) && /)) return "The same of a temporary: the case, or nothing."
  if (line ~ /^  static std::int64_t rows\(/) return "Rows of the batch."
  if (line ~ /^  static std::int64_t tokens\(/) return "Tokens of the batch; its rows where it is not made of tokens."
  if (line ~ /^  static .* slice\(/) return "The rows from `begin` to before `end`."
  if (is_metric_header && line ~ /^ *static constexpr char const\* name = /) return "Its name in records and sinks."
  if (is_metric_header && line ~ /^ *static constexpr char const\* key = /) return "Its key in layers.jsonl."
  if (is_metric_header && line ~ /^ *static .* of\(/) return "Its value in a line of the record; nothing where the line has none."
  return ""
}

END {
  is_policy_header = FILENAME ~ /\/policy\//
  file = FILENAME
  sub(/.*include\//, "", file)
  slot = file
  sub(/.*\//, "", slot)
  sub(/\.hpp$/, "", slot)
  is_metric_header = FILENAME ~ /_metric\.hpp$|\/unit\.hpp$/
  for (head = 0; head < count && lines[head + 1] ~ /^\/\//; ++head) {}
  if (head > 0) {
    for (i = 1; i <= head; ++i) {
      print (i == 1 ? "/*! @file " file " @verbatim " : "") substr(lines[i], 4) (i == head ? " @endverbatim */" : "")
      if (!is_policy_header) continue
      if (lines[i] ~ /^\/\/   [a-z]/ && read_entry(lines[i])) {
        has_entries = 1
        continue
      }
      if (!has_entries) opening = opening (opening == "" ? "" : " ") substr(lines[i], 4)
      if (lines[i] ~ /^\/\/      / && current != "") {
        text = lines[i]
        sub(/^\/\/ +/, "", text)
        continue_entry(text)
      } else {
        current = ""
      }
    }
  }
  for (i = head + 1; i <= count; ++i) {
    if (is_policy_header && match(lines[i], /^  [a-z_A-Z: ]+ [a-z_0-9]+( = [^;]*|[{].*[}])?; +\/\/\/< /)) {
      text = substr(lines[i], RLENGTH + 1)
      name = lines[i]
      sub(/( = .*|[{].*|; .*)/, "", name)
      sub(/.* /, "", name)
      setting[name] = text
    }
  }
  pending = ""
  for (i = head + 1; i <= count; ++i) {
    line = lines[i]
    sub(/::inline KEEL_MODE/, "", line)
    # A macro's body becomes the members of config and of numbers.
    sub(/^#define KEEL_SLOT\(NAME\) keel/, "#define KEEL_SLOT(NAME) /** The settings of the slot of that name. */ keel", line)
    sub(/^#define KEEL_NUMBER\(MEMBER, SLOT, FIELD\) given/, "#define KEEL_NUMBER(MEMBER, SLOT, FIELD) /** The number of that slot and field. */ given", line)
    if (line ~ /^ *friend .*operator(==|<=>)\(.*\) = default;$/ || line ~ /^ *friend [a-z_:]+;$/) line = ""
    for (name in is_public_base) gsub("detail::" name, name, line)
    opens = ""
    if (in_detail && begins_base(i)) {
      opens = "} namespace keel { "
      in_base = 1
    } else if (in_base && line == "};") {
      line = "}; } namespace keel::detail {"
      in_base = 0
    }
    # Templates and their constraints belong to the declaration that follows.
    if (line ~ /^ *template <.*>$/ || (pending != "" && line ~ /^ *requires/)) {
      pending = pending opens line "\n"
      continue
    }
    text = lines[i - 1] ~ /^ *\/\/\// ? "" : comment_of(i)
    if (pending != "") {
      if (before_pending ~ /^ *\/\/\//) text = ""
    }
    # On the same line: line numbers stay.
    if (line ~ /^namespace .*detail/) in_detail = 1
    if (line ~ /^}  \/\/ namespace .*detail/) in_detail = 0
    is_documented = text != "" || lines[i - 1] ~ /^ *\/\/\// || (pending != "" && before_pending ~ /^ *\/\/\//)
    if (!is_documented && !in_detail && line ~ /^(concept [a-z_0-9]+ =|struct [a-z_0-9]+( : .*)? [{][}];)/)
      print FILENAME ":" i ": warning: " line " is not documented." > "/dev/stderr"
    if (text != "") printf "/** %s */", toupper(substr(text, 1, 1)) substr(text, 2)
    printf "%s", pending
    print opens line
    pending = ""
    before_pending = lines[i]
  }
}

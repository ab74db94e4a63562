#include "server/mem0_filters.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/utf8.h"

namespace inferscale::mem0 {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;
constexpr int kMaxConditions = 256;

using OwnerMember = std::string Scope::*;
constexpr auto kOwners =
    std::to_array<std::pair<std::string_view, OwnerMember>>({{"user_id", &Scope::user},
                                                             {"agent_id", &Scope::agent},
                                                             {"app_id", &Scope::app},
                                                             {"run_id", &Scope::run}});

OwnerMember OwnerNamed(std::string_view name) {
  for (const auto& [owner, member] : kOwners) {
    if (owner == name) return member;
  }
  return nullptr;
}

std::string Quoted(std::string_view name) {
  return "'" + std::string(TruncateUtf8(name, 100)) + "'";
}

/// What the platform's grammar allows of a field.
struct PlatformField {
  std::set<std::string_view> operators;
  bool bare = false, bare_list = false;
};

const std::map<std::string_view, PlatformField>& PlatformFields() {
  static const PlatformField kTime = {{"gt", "gte", "lt", "lte", "ne", "in"}, true, false};
  static const std::map<std::string_view, PlatformField> kFields = {
      {"created_at", kTime},
      {"updated_at", kTime},
      {"timestamp", kTime},
      {"expiration_date", kTime},
      {"categories", {{"in", "contains"}, false, true}},
      {"keywords", {{"contains", "icontains"}, false, false}},
      {"text", {{"eq", "ne", "contains", "icontains"}, true, false}},
      {"memory_ids", {{"in"}, false, true}},
  };
  return kFields;
}

Status CheckPlatformField(const std::string& name, const json& value) {
  if (name == "metadata") return OkStatus();  // its keys are anybody's; the catalog's filter checks
  const auto found = PlatformFields().find(name);
  if (found == PlatformFields().end()) {
    return InvalidArgument("unknown filter key " + Quoted(name) +
                           ": use user_id, agent_id, app_id, run_id, created_at, updated_at, "
                           "timestamp, expiration_date, categories, metadata, keywords, text, "
                           "memory_ids, AND, OR or NOT");
  }
  const PlatformField& field = found->second;
  if (value.is_object()) {
    for (const auto& [word, operand] : value.items()) {
      if (field.operators.contains(word)) continue;
      std::string allowed;
      for (const std::string_view each : field.operators) {
        allowed += (allowed.empty() ? "" : ", ") + std::string(each);
      }
      return InvalidArgument("filter on " + Quoted(name) + " has the operator " + Quoted(word) +
                             "; it allows " + allowed);
    }
    return OkStatus();
  }
  if (value.is_array() ? field.bare_list : field.bare && !value.is_null()) return OkStatus();
  return InvalidArgument("filter on " + Quoted(name) + " needs an operator, such as {\"" +
                         std::string(*field.operators.begin()) + "\": …}");
}

struct Node {
  enum class Kind { kAnd, kOr, kNoneOf, kOwner, kFact };
  Kind kind = Kind::kAnd;
  std::vector<Node> children;

  OwnerMember owner = nullptr;
  bool any = false;      // "*"
  bool negated = false;  // ne, nin
  std::set<std::string> ids;

  json fact;  // one condition of the catalog's filter
};

class TreeParser {
 public:
  explicit TreeParser(ErrorDialect grammar) : platform_(grammar == ErrorDialect::kMem0Platform) {}

  bool names_owner() const { return names_owner_; }

  Result<Node> ParseObject(const json& object, int depth) {
    if (depth > kMaxDepth) {
      return InvalidArgument("the filter is nested deeper than " + std::to_string(kMaxDepth) +
                             " levels");
    }
    if (!object.is_object()) {
      return InvalidArgument(depth == 1 ? "'filters' must be an object"
                                        : "AND, OR and NOT take lists of objects");
    }
    if (object.empty() && depth > 1) {
      return InvalidArgument("the filter has an empty condition {}");
    }
    Node all;
    for (const auto& [key, value] : object.items()) {
      INFERSCALE_ASSIGN_OR_RETURN(Node member, ParseMember(key, value, depth));
      all.children.push_back(std::move(member));
    }
    return all;
  }

 private:
  Result<Node> ParseMember(const std::string& key, const json& value, int depth) {
    if (key == "AND" || key == "OR" || key == "NOT") return ParseList(key, value, depth);
    if (++conditions_ > kMaxConditions) {
      return InvalidArgument("the filter has more than " + std::to_string(kMaxConditions) +
                             " conditions");
    }
    if (const OwnerMember owner = OwnerNamed(key)) return ParseOwner(key, owner, value);
    if (platform_) INFERSCALE_RETURN_IF_ERROR(CheckPlatformField(key, value));
    Node leaf;
    leaf.kind = Node::Kind::kFact;
    leaf.fact = json{{key, value}};
    // Also when no scope is left that it could hold for: a wrong filter is always an error.
    INFERSCALE_RETURN_IF_ERROR(Filter::Parse(leaf.fact.dump()).status());
    return leaf;
  }

  Result<Node> ParseList(const std::string& word, const json& value, int depth) {
    Node list;
    list.kind = word == "AND"  ? Node::Kind::kAnd
                : word == "OR" ? Node::Kind::kOr
                               : Node::Kind::kNoneOf;
    const json items = word == "NOT" && value.is_object() ? json::array({value}) : value;
    if (!items.is_array() || items.empty()) {
      return InvalidArgument("'" + word + "' takes a list of at least one condition");
    }
    for (const json& item : items) {
      INFERSCALE_ASSIGN_OR_RETURN(Node child, ParseObject(item, depth + 1));
      list.children.push_back(std::move(child));
    }
    return list;
  }

  Result<Node> ParseOwner(const std::string& name, OwnerMember owner, const json& value) {
    names_owner_ = true;
    Node all;
    if (!value.is_object()) {
      INFERSCALE_ASSIGN_OR_RETURN(Node leaf, ParseOwnerCondition(name, owner, "eq", value));
      return leaf;
    }
    if (value.empty()) return InvalidArgument("filter on " + Quoted(name) + " has no operator");
    for (const auto& [word, operand] : value.items()) {
      INFERSCALE_ASSIGN_OR_RETURN(Node leaf, ParseOwnerCondition(name, owner, word, operand));
      all.children.push_back(std::move(leaf));
    }
    return all;
  }

  Result<Node> ParseOwnerCondition(const std::string& name, OwnerMember owner,
                                   const std::string& word, const json& operand) {
    Node leaf;
    leaf.kind = Node::Kind::kOwner;
    leaf.owner = owner;
    const bool list = word == "in" || (word == "nin" && !platform_);
    if (!list && word != "eq" && word != "ne") {
      return InvalidArgument("filter on " + Quoted(name) + " has the operator " + Quoted(word) +
                             "; it allows eq, ne" + (platform_ ? " and in" : ", in and nin"));
    }
    leaf.negated = word == "ne" || word == "nin";
    if (!list && operand == "*") {
      leaf.any = true;
      return leaf;
    }
    if (list && !operand.is_array()) {
      return InvalidArgument("filter on " + Quoted(name) + " needs a list for '" + word + "'");
    }
    const json values = list ? operand : json::array({operand});
    for (const json& item : values) {
      INFERSCALE_ASSIGN_OR_RETURN(std::string id, EntityId(item, name));
      leaf.ids.insert(std::move(id));
    }
    return leaf;
  }

  const bool platform_;
  bool names_owner_ = false;
  int conditions_ = 0;
};

/// What is left of a filter for one scope: true, false, or a condition on its facts.
using Residue = std::variant<bool, json>;

Residue Evaluate(const Node& node, const Scope& scope) {
  if (node.kind == Node::Kind::kFact) return node.fact;
  if (node.kind == Node::Kind::kOwner) {
    const std::string& id = scope.*node.owner;
    const bool holds = !id.empty() && (node.any || node.ids.contains(id));
    return holds != node.negated;
  }
  const bool conjunction = node.kind == Node::Kind::kAnd;
  json open = json::array();
  bool decided = false;
  for (const Node& child : node.children) {
    const Residue residue = Evaluate(child, scope);
    if (const bool* value = std::get_if<bool>(&residue)) {
      decided = decided || *value != conjunction;
    } else {
      open.push_back(std::get<json>(residue));
    }
  }
  const bool negated = node.kind == Node::Kind::kNoneOf;
  if (decided) return conjunction ? false : !negated;
  if (open.empty()) return conjunction || negated;
  if (negated) return json{{"NOT", std::move(open)}};
  if (open.size() == 1) return open.front();
  return json{{conjunction ? "AND" : "OR", std::move(open)}};
}

/// Ids that every fact's owner has to have.
void Narrow(const Node& node, Scope& query) {
  if (node.kind == Node::Kind::kOwner) {
    if (!node.negated && !node.any && node.ids.size() == 1) query.*node.owner = *node.ids.begin();
  } else if (node.kind == Node::Kind::kAnd) {
    for (const Node& child : node.children) Narrow(child, query);
  }
}

}  // namespace

Result<Selected> Select(Catalog& catalog, const Principal& principal, const json& filters,
                        ErrorDialect grammar) {
  TreeParser parser(grammar);
  INFERSCALE_ASSIGN_OR_RETURN(const Node tree, parser.ParseObject(filters, 1));
  if (!parser.names_owner() && !principal.bound) {
    return InvalidArgument(
        "whose memories? Give user_id, agent_id, app_id or run_id (in 'filters' or beside it)");
  }
  Scope query;
  if (principal.bound) query = *principal.bound;
  query.tenant = principal.tenant;
  Narrow(tree, query);
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes, catalog.FindScopes(query));
  Selected selected;
  std::map<std::string, std::vector<ScopeId>> by_residue;
  for (const ScopeInfo& info : scopes) {
    if (!MaySee(principal, info.scope)) continue;
    const Residue residue = Evaluate(tree, info.scope);
    const bool* value = std::get_if<bool>(&residue);
    if (value != nullptr && !*value) continue;
    by_residue[value != nullptr ? std::string() : std::get<json>(residue).dump()].push_back(
        info.id);
    selected.owners.emplace(info.id, info.scope);
  }
  for (auto& [residue, ids] : by_residue) {
    Selection part;
    part.scopes = std::move(ids);
    if (!residue.empty()) {
      INFERSCALE_ASSIGN_OR_RETURN(part.filter, Filter::Parse(residue));
    }
    selected.parts.push_back(std::move(part));
  }
  return selected;
}

json BothOf(json one, json other) {
  if (one.is_null() || (one.is_object() && one.empty())) return other;
  if (other.is_null() || (other.is_object() && other.empty())) return one;
  return json{{"AND", json::array({std::move(one), std::move(other)})}};
}

json OwnersIn(const json& object) {
  json owners = json::object();
  for (const auto& [name, member] : kOwners) {
    const auto found = object.find(name);
    if (found != object.end() && !found->is_null()) owners[std::string(name)] = *found;
  }
  return owners;
}

}  // namespace inferscale::mem0

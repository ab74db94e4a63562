#include "encode/recipe.h"

namespace inferscale {
namespace {

// Everyday statements in exactly the form facts are served in: what follows such a list is read as
// one more item of it. General enough never to be mistaken for a memory of somebody. "{other}"
// becomes the other person's name. Any prefix of the list stands on its own.
constexpr PrimerFact kPrimer[] = {
    {"2 March 2024", 0,
     "has a dog that needs two long walks a day and usually sleeps at the foot of the bed"},
    {"9 March 2024", 1,
     "works in an office near the centre of town and takes the bus there on most days"},
    {"21 March 2024", 0,
     "went to the coast for a long weekend, stayed in a small guest house and enjoyed the quiet"},
    {"5 April 2024", 1,
     "likes to cook vegetable soup and fresh pasta at home, and tries one new recipe every month"},
    {"18 April 2024", 0,
     "told {other} about a sore back and has started doing short stretching exercises every "
     "morning before breakfast"},
    {"3 May 2024", 1,
     "has an older sister who lives in another city and visits the family with her children at "
     "Christmas"},
    {"20 May 2024", 0,
     "plays the piano in the evenings and has been taking lessons once a week for about a year"},
    {"11 June 2024", 1,
     "plans to paint the kitchen in the summer because the old colour makes the room look dark"},
    {"29 June 2024", 0,
     "prefers reading paper books to watching films and thinks that most series are far too long"},
    {"14 July 2024", 1,
     "bought a new desk and a comfortable chair for 300 dollars in order to work from home twice a "
     "week, as {other} had suggested"},
    {"8 August 2024", 0, "is looking for a new job that is closer to home and pays a little more"},
    {"25 August 2024", 1,
     "goes running in the park with a neighbour on Sundays and would like to enter a local race "
     "next year"},
    {"17 September 2024", 0,
     "cannot eat dairy products and always checks the label before buying anything sweet"},
    {"6 October 2024", 1,
     "helped {other} to move some furniture last weekend and was given a homemade apple cake in "
     "return"},
    {"12 November 2024", 0,
     "is saving money for a trip abroad with two old friends from school, probably in the spring"},
    {"1 December 2024", 1,
     "had a bad cold for a week, missed an important meeting and is now feeling much better"},
};

}  // namespace

std::span<const PrimerFact> GenericPrimer() { return kPrimer; }

}  // namespace inferscale

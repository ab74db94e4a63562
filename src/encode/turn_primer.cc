#include "encode/recipe.h"

namespace inferscale {
namespace {

// What people write to each other, in exactly the form that turns are served in when they are facts
// themselves: first person, questions, small talk. Any prefix of the list stands on its own.
constexpr PrimerFact kTurnPrimer[] = {
    {"2 March 2024", 0,
     "Good to hear from you! It has been a busy week here, but I finally booked the tickets and "
     "can't wait to get away."},
    {"2 March 2024", 1,
     "That sounds lovely. Where are you staying? We went to a small guest house last year and it "
     "was so quiet."},
    {"21 March 2024", 0,
     "We just got back last night. The weather was cold but the food was great, and the dog slept "
     "the whole way home."},
    {"5 April 2024", 1,
     "Guess what, I have started to learn the piano! My teacher says that I should practise for "
     "ten minutes every day."},
    {"18 April 2024", 0,
     "Wow, well done! I tried it once when I was a child and gave up after a month. What are you "
     "playing?"},
    {"3 May 2024", 1,
     "Thanks for your help on Saturday. Without you the sofa would still be on the stairs, and the "
     "children loved the cake."},
    {"20 May 2024", 0,
     "No problem, it was fun. By the way, my sister is coming to visit us in June with her two "
     "boys."},
    {"11 June 2024", 1,
     "I had a bit of a bad day, to be honest. My boss moved the meeting again and I missed my bus "
     "home."},
    {"29 June 2024", 0,
     "Sorry to hear that. Do you want to come over for dinner on Friday? I am making the pasta "
     "that "
     "you like."},
    {"14 July 2024", 1,
     "I'd love to! I can bring some fruit. Oh, and here is a photo of the kitchen, we painted it "
     "light blue in the end."},
    {"8 August 2024", 0,
     "It looks so much brighter now. I have been thinking of looking for a new job that is closer "
     "to home."},
    {"25 August 2024", 1,
     "You should go for it. I ran my first race last Sunday and I still can't believe that I got "
     "to the end."},
};

}  // namespace

std::span<const PrimerFact> GenericTurnPrimer() { return kTurnPrimer; }

}  // namespace inferscale
